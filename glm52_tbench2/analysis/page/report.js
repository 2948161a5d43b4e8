"use strict";
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const set = (theme) => { root.dataset.theme = theme; };
  set(dark.matches ? "dark" : "light");
  dark.addEventListener("change", (event) => set(event.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    set(root.dataset.theme === "dark" ? "light" : "dark");
  });

  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (event, lines) => {
    tip.replaceChildren(...lines);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > window.innerWidth
      ? event.clientX - 16 - box.width : event.clientX + 16;
    const top = Math.min(event.clientY + 14, window.innerHeight - box.height - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  };
  const line = (text, colour) => {
    const row = document.createElement("div");
    if (colour) {
      const key = document.createElement("i");
      key.className = `key c${colour}`;
      row.append(key);
    }
    row.append(text);
    return row;
  };

  const charts = document.querySelectorAll("svg[data-chart]");
  for (const svg of charts) {
    const data = JSON.parse(svg.dataset.chart);
    const box = svg.viewBox.baseVal;
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", "12");
    cursor.setAttribute("y2", String(box.height - 26));
    cursor.style.display = "none";
    svg.append(cursor);
    svg.addEventListener("pointermove", (event) => {
      const area = svg.getBoundingClientRect();
      const x = (event.clientX - area.left) / area.width * box.width;
      let at = 0;
      for (let i = 1; i < data.x.length; i += 1) {
        if (Math.abs(data.x[i] - x) < Math.abs(data.x[at] - x)) at = i;
      }
      cursor.setAttribute("x1", data.x[at]);
      cursor.setAttribute("x2", data.x[at]);
      cursor.style.display = "";
      const rows = data.series.filter((s) => s.values[at] !== "")
        .map((s) => line(`${s.name}: ${s.values[at]}`, s.colour));
      show(event, [line(`step ${data.steps[at]}`), ...rows]);
    });
    svg.addEventListener("pointerleave", () => { cursor.style.display = "none"; hide(); });
  }
  for (const heat of document.querySelectorAll("svg.heat")) {
    heat.addEventListener("pointermove", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) show(event, [line(cell.dataset.tip)]); else hide();
    });
    heat.addEventListener("pointerleave", hide);
  }
  root.dataset.charts = String(charts.length);
})();
