"use strict";
// Maps of tasks and of repeated turns by step, the samples behind a cell, and conversations token
// by token. A conversation stays packed in its own element until it is opened.
(() => {
  const data = document.getElementById("explore-data");
  if (!data) return;
  const sides = JSON.parse(data.textContent);
  const make = (name, attributes = {}, ...children) => {
    const svg = ["svg", "rect", "text", "g", "title"].includes(name);
    const found = svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    found.append(...children);
    return found;
  };
  const number = (value, digits = 3) => value === null || value === undefined ? "–"
    : Number.isFinite(value) ? String(+value.toPrecision(digits)) : String(value);
  const clamp = (value) => Math.max(0, Math.min(1, value));
  const mixed = (colour, share) =>
    `color-mix(in oklab, var(${colour}) ${(100 * clamp(share)).toFixed(1)}%, var(--heat-0))`;
  const signed = (value, most) =>
    mixed(value < 0 ? "--cut" : "--c3", Math.sqrt(Math.abs(value) / (most || 1)));
  // |D| from 0.01 to 10, by its logarithm.
  const drifted = (value) => mixed("--bad", (Math.log10(Math.max(value, 1e-2)) + 2) / 3);

  // What a cell may be coloured by: its colour, from one end of the scale to the other.
  const scales = {
    reward: { ends: [0, 1], colour: (value) => mixed("--heat-1", value) },
    pull: { ends: [-2, 2], colour: (value) => signed(value, 2) },
    drift: { ends: [0.01, 10], log: true, colour: drifted },
    truncated: { ends: [0, 1], colour: (value) => mixed("--cut", value) },
    count: { ends: [0, 8], colour: (value) => mixed("--heat-1", value / 8) },
    advantage: { ends: [-2, 2], colour: (value) => signed(value, 2) },
  };
  const known = (value) => Number.isFinite(value);
  const key = (by, values) => {
    const { ends: [low, high], log, colour } = scales[by];
    const at = (share) => log ? low * (high / low) ** share : low + (high - low) * share;
    const ramp = make("i");
    const stops = Array.from({ length: 17 }, (_, place) => colour(at(place / 16)));
    ramp.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
    const some = values.filter(known);
    const less = some.some((value) => value < low) || log ? "≤ " : "";
    const more = some.some((value) => value > high) ? "≥ " : "";
    const found = make("span", { class: "scale" }, `${less}${low}`, ramp, `${more}${high}`);
    if (some.length < values.length) found.append(make("i", { class: "unknown" }), "not known");
    return found;
  };

  // A map: rows [{name, cells: {step: cell}}], one column a step. Arrow keys move, Enter opens.
  const draw = (rows, steps, label, room, opened) => {
    const names = 230, high = 15;
    const wide = Math.max(4, Math.min(22, (room - names - 6) / Math.max(1, steps.length)));
    const svg = make("svg", {
      class: "map", tabindex: 0, role: "img", "aria-label": label,
      width: names + wide * steps.length + 6, height: high * rows.length + 22,
    });
    const cells = new Map();
    const every = Math.ceil(44 / wide);
    steps.forEach((step, column) => {
      if (column % every) return;
      const at = { class: "tick", x: names + (column + 0.5) * wide, y: 11, "text-anchor": "middle" };
      svg.append(make("text", at, String(step)));
    });
    rows.forEach((row, line) => {
      const room = 34 - (row.note || "").length;
      const name = row.name.length > room ? `${row.name.slice(0, room - 1)}…` : row.name;
      const short = `${name}${row.note || ""}`;
      const at = { class: "row", x: names - 8, y: 29 + line * high, "text-anchor": "end" };
      svg.append(make("text", at, short, make("title", {}, row.told || row.name)));
      steps.forEach((step, column) => {
        const cell = row.cells[step];
        if (!cell) return;
        const rect = make("rect", {
          class: "spot", x: names + column * wide, y: 18 + line * high,
          width: wide - Math.min(1, wide / 5), height: high - 1, "data-at": `${line},${column}`,
        });
        cells.set(`${line},${column}`, { rect, cell, row, step });
        svg.append(rect);
      });
    });
    let chosen = null;
    const choose = (found) => {
      if (!found) return;
      chosen?.rect.classList.remove("chosen");
      chosen = found;
      found.rect.classList.add("chosen");
      opened(found);
    };
    svg.addEventListener("click", (event) => choose(cells.get(event.target.dataset.at)));
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const [down, right] = move[event.key] || [];
      if (down === undefined) return;
      event.preventDefault();
      let [line, column] = chosen ? chosen.rect.dataset.at.split(",").map(Number) : [0, -1];
      do {
        line += down;
        column += right;
        if (line < 0 || line >= rows.length || column < 0 || column >= steps.length) return;
      } while (!cells.has(`${line},${column}`));
      choose(cells.get(`${line},${column}`));
    });
    const paint = (by, told) => {
      for (const { rect, cell, row, step } of cells.values()) {
        rect.style.fill = known(cell[by]) ? scales[by].colour(cell[by]) : "";
        rect.classList.toggle("unknown", !known(cell[by]));
        rect.replaceChildren(make("title", {}, `${row.name}, step ${step}: ${told(cell)}`));
      }
    };
    const values = (by) => Array.from(cells.values(), ({ cell }) => cell[by]);
    return { svg, paint, values };
  };

  const samplesOf = (side, found) => {
    if (found.cell.turns) {
      const ids = new Map();
      for (const [id, turn] of found.cell.turns) ids.set(id, [...(ids.get(id) || []), turn]);
      return side.samples[found.step].filter((one) => ids.has(one[0]))
        .map((one) => [...one, ids.get(one[0])]);
    }
    return side.samples[found.step].filter((one) => one[1] === found.row.name);
  };

  const explorer = (side, index) => {
    const home = document.getElementById(`explore-${index}`);
    const list = make("div", { class: "samples", "aria-live": "polite" },
      make("p", { class: "hint" }, "Choose a cell to see its samples."));
    const view = make("div", { class: "conversation" });
    const opened = (found) => {
      const rows = samplesOf(side, found).map(([id, task, reward, advantage, end, turns]) => {
        const button = make("button", { type: "button", "data-sample": id }, id);
        button.addEventListener("click", () => {
          window.glm52Conversation(view, side, id, turns ? turns[0] : null);
        });
        const cells = [task, number(reward), number(advantage), end];
        return make("tr", {}, make("td", {}, button), ...cells.map((text) => make("td", {}, text)));
      });
      const head = ["sample", "task", "reward", "advantage", "end"];
      list.replaceChildren(
        make("h3", {}, `${found.row.name}, step ${found.step}`),
        make("table", { class: "numbers" },
          make("thead", {}, make("tr", {}, ...head.map((text) => make("th", {}, text)))),
          make("tbody", {}, ...rows)),
      );
    };
    const add = (title, hint, map, choices, told) => {
      const select = make("select", { "aria-label": `Colour of ${title}` },
        ...Object.entries(choices).map(([key, text]) => make("option", { value: key }, text)));
      const scale = make("p", { class: "hint" });
      const paint = () => {
        map.paint(select.value, told);
        scale.replaceChildren(key(select.value, map.values(select.value)));
      };
      select.addEventListener("change", paint);
      paint();
      home.append(make("div", { class: "card wide" }, make("h3", {}, title, " ", select),
        make("p", { class: "hint" }, hint), scale, map.svg));
    };
    const room = Math.max(480, home.clientWidth - 38);  // of a card, inside
    if (side.tasks.length) {
      const rows = side.tasks.map((row) => ({ name: row.task, cells: row.cells }));
      const order = side.judged ? ", those pushed down most first" : "";
      const scored = { pull: "mean advantage of its tokens", drift: "mean |D|" };
      add("Tasks by step", `A row a task${order}; a cell a visit.`,
        draw(rows, side.steps, "Training tasks by step", room, opened),
        { ...(side.judged ? scored : {}), reward: "mean reward", truncated: "truncated share" },
        (cell) => `reward ${number(cell.reward)}, advantage ${number(cell.pull)}, `
          + `|D| ${number(cell.drift)}, ${number(100 * cell.truncated)} % cut`);
    } else {
      home.append(make("p", { class: "nothing" },
        "No batch has been written yet: there are no maps."));
    }
    if (side.families.length) {
      const rows = side.families.map((one) => ({
        name: one.name, note: ` (${one.tokens}, from ${one.since})`, cells: one.cells,
        told: `${one.name}: ${one.tokens} tokens, first in step ${one.since}`,
      }));
      const more = side.more_families ? ` ${side.more_families} rarer families are not shown.` : "";
      add("Turns that come again",
        "A row a family of near-identical turns near the cap, in two steps or more; its tokens a "
        + `turn and its first step.${more}`,
        draw(rows, side.steps, "Repeated turns by step", room, opened),
        { advantage: "mean advantage", drift: "mean |D|", count: "how many" },
        (cell) => `${cell.count} turns, advantage ${number(cell.advantage)}, `
          + `|D| ${number(cell.drift)}`);
    } else if (side.tasks.length) {
      home.append(make("p", { class: "nothing" }, side.judged
        ? "No turn near the cap came again in a later step, near-identical."
        : "Whether turns near the cap come again is not known: no step could be judged."));
    }
    home.append(make("div", { class: "card" }, list), view);
  };

  sides.forEach(explorer);
  document.documentElement.dataset.explore = String(sides.length);
})();
