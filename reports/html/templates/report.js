"use strict";
const charts = JSON.parse(document.getElementById("charts").textContent);
for (const { id, data, layout } of charts) {
  const zoomable = layout.dragmode === "zoom";
  Plotly.newPlot(id, data, layout, {
    displaylogo: false,
    displayModeBar: zoomable,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    responsive: true,
    showTips: false,
  });
}
for (const choice of document.querySelectorAll("select[data-chart]")) {
  const { id, data } = charts.find(({ id }) => id === choice.dataset.chart);
  choice.addEventListener("change", () => Plotly.restyle(id, { visible: data.map((_, i) => i === choice.selectedIndex) }));
}
// On paper the width differs, and <details> cannot be opened.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  for (const { id } of charts) Plotly.Plots.resize(id);
});
