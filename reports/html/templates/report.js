"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const charts = read("charts");
const undrawn = new Map(charts.map((chart) => [chart.id, chart]));
const draw = (id) => {
  const { data, layout } = undrawn.get(id) ?? {};
  if (!undrawn.delete(id)) return;
  const narrow = document.getElementById(id).clientWidth < 480;
  const zoomable = layout.dragmode === "zoom" && !narrow;
  // On a phone the labels of many ticks would overlap.
  if (narrow && layout.xaxis?.side === "top") layout.xaxis.nticks = layout.yaxis2 ? 2 : 3;
  Plotly.newPlot(id, data, layout, {
    displaylogo: false,
    displayModeBar: zoomable,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    responsive: true,
    showTips: false,
  });
  if (layout.meta?.zoom_on_click) {
    const zoom = (from, to) => Plotly.relayout(id, { "xaxis.range": [from, to] });
    document.getElementById(id).on("plotly_click", ({ points: [{ data, pointNumber }] }) =>
      zoom(data.base[pointNumber], data.base[pointNumber] + data.x[pointNumber]));
  }
};

// Drawing takes longer than all else: charts near the screen come first, the others once the page is open and idle.
const near = new IntersectionObserver((seen) => {
  for (const { isIntersecting, target } of seen) if (isIntersecting) draw(target.id);
}, { rootMargin: "50%" });
for (const { id } of charts) near.observe(document.getElementById(id));
const idle = window.requestIdleCallback ?? setTimeout; // Safari has none.
const drawNext = () => {
  const [id] = undrawn.keys();
  if (!id) return near.disconnect();
  draw(id);
  idle(drawNext);
};
addEventListener("load", () => idle(drawNext));

for (const choice of document.querySelectorAll("select[data-chart]")) {
  const { id, data } = charts.find(({ id }) => id === choice.dataset.chart);
  choice.addEventListener("change", () => {
    draw(id);
    const shown = choice.selectedIndex;
    Plotly.update(id, { visible: data.map((_, i) => i === shown) }, { "xaxis.range": [0, data[shown].x[0]] });
  });
}
for (const choice of document.querySelectorAll("select[data-zoom]")) {
  const { id, zooms } = charts.find(({ id }) => id === choice.dataset.zoom);
  choice.addEventListener("change", () => {
    draw(id);
    const { first, last, height } = zooms[choice.selectedIndex];
    document.getElementById(id).style.height = `${height}px`;
    Plotly.relayout(id, { "yaxis.range": [last + 0.5, first - 0.5], height });
  });
}

// Every position of a control has a cell that was priced beforehand.
const priced = read("priced");
for (const box of document.querySelectorAll(".explorer")) {
  const cells = priced[box.dataset.grid];
  const controls = [...box.querySelectorAll("[data-stride]")];
  const position = (one) => (one.type === "checkbox" ? +one.checked : one.type === "range" ? +one.value : one.selectedIndex);
  const [text, code] = [box.querySelector(".priced"), box.querySelector("code")];
  const part = (name) => box.querySelector(`.span .${name}`).style;
  box.addEventListener("input", () => {
    for (const one of controls.filter(({ type }) => type === "range")) {
      const value = one.dataset.values.split("|")[one.value];
      one.setAttribute("aria-valuetext", value);
      box.querySelector(`output[for="${one.id}"]`).textContent = value;
    }
    const cell = cells[controls.reduce((sum, one) => sum + position(one) * one.dataset.stride, 0)];
    const [said, spec, step, low, high] = cell ?? ["not predicted together", "", 0, 0, 0];
    text.textContent = said;
    code.textContent = `esprof replay RUN --what-if ${spec}`;
    code.hidden = !spec;
    part("step").width = `${step}%`;
    part("band").left = `${low}%`;
    part("band").width = `${high - low}%`;
  });
}

const show = (table, all) => {
  const query = (document.querySelector(`[data-filter="${table.id}"]`)?.value ?? "").toLowerCase();
  let left = all || query ? Infinity : +table.dataset.short;
  for (const row of table.tBodies[0].rows) {
    const found = !query || row.cells[0].textContent.toLowerCase().includes(query);
    row.hidden = !(found && left-- > 0);
  }
};
for (const table of document.querySelectorAll("table[data-short]")) {
  const body = table.tBodies[0];
  const more = document.querySelector(`[data-all="${table.id}"]`);
  more.hidden = body.rows.length <= +table.dataset.short;
  more.addEventListener("click", () => { show(table, true); more.hidden = true; });
  document.querySelector(`[data-filter="${table.id}"]`).addEventListener("input", () => show(table, more.hidden));
  for (const button of table.tHead.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const column = head.cellIndex;
      const down = head.getAttribute("aria-sort") !== "descending" && column > 0;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const of = ({ cells }) => (column ? +cells[column].dataset.v : cells[0].textContent.trim());
      const order = (a, b) => (column ? of(a) - of(b) : of(a).localeCompare(of(b)));
      body.append(...[...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b))));
      show(table, more.hidden);
    });
  }
  show(table, more.hidden);
}

// On paper the width differs, and <details> cannot be opened.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  for (const table of document.querySelectorAll("table[data-short]")) show(table, true);
  for (const { id } of charts) draw(id), Plotly.Plots.resize(id);
});
