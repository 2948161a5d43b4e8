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

  const colours = {
    reward: (cell) => mixed("--heat-1", cell.reward),
    pull: (cell) => signed(cell.pull ?? 0, 2),
    drift: (cell) => drifted(cell.drift ?? 0),
    truncated: (cell) => mixed("--cut", cell.truncated),
    count: (cell) => mixed("--heat-1", cell.count / 8),
    advantage: (cell) => signed(cell.advantage, 2),
  };

  // A map: rows [{name, cells: {step: cell}}], one column a step. Arrow keys move, Enter opens.
  const draw = (rows, steps, label, opened) => {
    const names = 230, wide = Math.max(4, Math.min(22, 900 / Math.max(1, steps.length))), high = 15;
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
      const short = row.name.length > 34 ? `${row.name.slice(0, 33)}…` : row.name;
      const at = { class: "row", x: names - 8, y: 29 + line * high, "text-anchor": "end" };
      svg.append(make("text", at, short, make("title", {}, row.name)));
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
        rect.style.fill = colours[by](cell);
        rect.replaceChildren(make("title", {}, `${row.name}, step ${step}: ${told(cell)}`));
      }
    };
    return { svg, paint };
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
      select.addEventListener("change", () => map.paint(select.value, told));
      map.paint(select.value, told);
      home.append(make("div", { class: "card wide" },
        make("h3", {}, title, " ", select), make("p", { class: "hint" }, hint), map.svg));
    };
    if (side.tasks.length) {
      const rows = side.tasks.map((row) => ({ name: row.task, cells: row.cells }));
      add("Tasks by step",
        "A row a task, those pushed down most first; a cell a visit.",
        draw(rows, side.steps, "Training tasks by step", opened),
        { pull: "mean advantage of its tokens", reward: "mean reward", drift: "mean |D|",
          truncated: "truncated share" },
        (cell) => `reward ${number(cell.reward)}, advantage ${number(cell.pull)}, `
          + `|D| ${number(cell.drift)}, ${number(100 * cell.truncated)} % cut`);
    } else {
      home.append(make("p", { class: "nothing" },
        "No batch has been written yet: there are no maps."));
    }
    if (side.families.length) {
      const rows = side.families.map((one) => (
        { name: `${one.name} (${one.tokens} tokens)`, cells: one.cells }));
      const more = side.more_families ? ` ${side.more_families} rarer families are not shown.` : "";
      add("Turns that come again",
        `A row a family of near-identical turns near the cap, in two steps or more.${more}`,
        draw(rows, side.steps, "Repeated turns by step", opened),
        { advantage: "mean advantage", drift: "mean |D|", count: "how many" },
        (cell) => `${cell.count} turns, advantage ${number(cell.advantage)}, `
          + `|D| ${number(cell.drift)}`);
    } else if (side.tasks.length) {
      home.append(make("p", { class: "nothing" },
        "No turn near the cap came again in a later step, near-identical."));
    }
    home.append(make("div", { class: "card" }, list), view);
  };

  sides.forEach(explorer);
  document.documentElement.dataset.explore = String(sides.length);
})();
