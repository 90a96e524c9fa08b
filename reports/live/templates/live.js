"use strict";
// Sections arrive over one event stream, as HTML escaped by the server. Requests of the user are sent as forms.
const { events, server } = document.body.dataset;
let seen = document.body.dataset.seen;
let stream;

function show(state, text) {
  const link = document.getElementById("link");
  link.dataset.state = state;
  link.textContent = text;
}

function connect() {
  stream?.close();
  stream = new EventSource(`${events}?seen=${seen}`);
  stream.addEventListener("hello", (event) => {
    // Another server has other sections, and another token in its forms.
    if (event.data !== server) location.reload();
    else show("live", "live");
  });
  stream.addEventListener("section", (event) => {
    seen = event.lastEventId;
    replace(JSON.parse(event.data));
  });
  stream.onerror = () => {
    show("lost", "no connection to esprof serve; trying again");
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
}

function replace({ name, html }) {
  const section = document.getElementById(name);
  if (!section) return;
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const read = section.querySelector(".plot")?.dataset.read;
  section.innerHTML = html;
  if (focused) (document.getElementById(focused.id) ?? section.querySelector(`.${focused.className || "none"}`))?.focus();
  const plot = section.querySelector(".plot");
  if (plot) readStep(plot, read);
}

// Show the time of the step under the pointer, or selected with the arrow keys; otherwise of the newest.
function readStep(plot, wanted) {
  const steps = JSON.parse(plot.dataset.steps);
  const found = steps.find(([step]) => String(step) === wanted);
  const [step, us, at] = found ?? steps.at(-1);
  if (found) plot.dataset.read = step;
  else delete plot.dataset.read;
  const cursor = plot.querySelector(".cursor");
  cursor.setAttribute("visibility", found ? "visible" : "hidden");
  for (const end of ["x1", "x2"]) cursor.setAttribute(end, `${at}%`);
  const ms = us / 1000;
  const digits = ms >= 1000 ? 0 : ms >= 10 ? 1 : 2;
  const number = ms.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  plot.querySelector(".readout").textContent = `step ${step.toLocaleString("en")}: ${number} ms`;
}

document.addEventListener("pointermove", (event) => {
  const plot = event.target.closest?.(".plot");
  if (!plot) return;
  const box = plot.getBoundingClientRect();
  const at = (100 * (event.clientX - box.left)) / box.width;
  const steps = JSON.parse(plot.dataset.steps);
  const near = steps.reduce((best, one) => (Math.abs(one[2] - at) < Math.abs(best[2] - at) ? one : best));
  readStep(plot, String(near[0]));
});

document.addEventListener("pointerout", (event) => {
  const plot = event.target.closest?.(".plot");
  if (plot && !plot.contains(event.relatedTarget)) readStep(plot);
});

document.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const plot = event.target.closest?.(".plot");
  if (!plot || !by) return;
  event.preventDefault();
  const steps = JSON.parse(plot.dataset.steps);
  const found = steps.findIndex(([step]) => String(step) === plot.dataset.read);
  const next = Math.min(steps.length - 1, Math.max(0, (found < 0 ? steps.length - 1 : found) + by));
  readStep(plot, String(steps[next][0]));
});

document.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const body = new URLSearchParams(new FormData(form));
    const answer = await fetch(form.action, { method: "POST", body, redirect: "manual" });
    // The result arrives over the event stream, on all open pages.
    if (answer.type !== "opaqueredirect") show("lost", (await answer.text()).trim());
  } catch {
    show("lost", "no connection to esprof serve: nothing was done");
  } finally {
    button.disabled = false;
  }
});

// A hidden page closes its stream, since a browser allows few connections to one server.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream.close();
  else connect();
});
for (const plot of document.querySelectorAll(".plot")) readStep(plot);
connect();
