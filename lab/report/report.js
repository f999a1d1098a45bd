// Draws each picture from the tables beside it, so picture and text alternative cannot differ.
"use strict";

const RUNS = {
  healthy: { color: "var(--healthy)", width: 5, dash: [1, 0], opacity: 0.55 },
  faulty: { color: "var(--faulty)", width: 2, dash: [1, 0], opacity: 1 },
  fixed: { color: "var(--fixed)", width: 1.5, dash: [5, 4], opacity: 1 },
  claimed: { color: "var(--claimed)", width: 2, dash: [1.5, 3], opacity: 1 },
};
// Vega measures texts to place them, so it must know the font that they will have.
const FONT = getComputedStyle(document.body).fontFamily;
const AXIS = {
  domainColor: "var(--muted)", tickColor: "var(--muted)", gridColor: "var(--rule)",
  labelColor: "var(--muted)", titleColor: "var(--ink)",
  labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal", labelFont: FONT, titleFont: FONT,
};

const number = (text) => ({ nan: NaN, inf: Infinity, "-inf": -Infinity }[text] ?? Number(text));
const cells = (row) => [...row.children].map((cell) => cell.textContent.trim());
const bodyRows = (table) => [...table.tBodies[0].rows].map(cells);
const extent = (values) => [Math.min(...values), Math.max(...values)];

// {run, x, y} of each number of a curve's table: its first column is x, each other one a run.
function points(table) {
  const runs = cells(table.tHead.rows[0]).slice(1);
  return bodyRows(table).flatMap(([x, ...ys]) =>
    runs.map((run, i) => ({ run, x: number(x), text: ys[i] })).filter((point) => point.text !== "" && isFinite(point.x)))
    .map((point) => ({ ...point, y: number(point.text) }));
}

// A logarithmic axis only where many values are so small that a linear one would show them as 0.
const spansDecades = (values) =>
  values.every((v) => v > 0) && values.filter((v) => v < Math.max(...values) / 100).length > values.length / 4;

function curveSpec(figure, width) {
  const all = points(figure.querySelector("table"));
  const seen = all.filter((point) => isFinite(point.y));
  const ys = seen.map((point) => point.y);
  const log = ys.length > 0 && spansDecades(ys);
  let [low, high] = ys.length ? extent(ys) : [0, 1];
  if (low === high) [low, high] = [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
  const height = 240;
  // What is no number has no height: it stands at the top edge (-inf at the bottom), by name.
  const odd = all.filter((point) => !isFinite(point.y)).map((point, i, rest) => ({
    ...point,
    edge: point.y === -Infinity ? height - 5 : 5,
    label: rest.findIndex((other) => other.run === point.run && other.text === point.text) === i ? point.text : "",
  }));
  const runs = [...new Set(all.map((point) => point.run))];
  const count = (run) => seen.filter((point) => point.run === run).length;
  const x = { scale: "x", field: "x" };
  return {
    width, height, padding: 5,
    autosize: { type: "fit", contains: "padding" },
    data: [...runs.map((run) => ({ name: run, values: seen.filter((point) => point.run === run) })), { name: "odd", values: odd }],
    scales: [
      { name: "x", type: "linear", domain: extent(all.map((point) => point.x)), range: "width", zero: false, nice: false },
      { name: "y", type: log ? "log" : "linear", domain: [low, high], range: "height", zero: false, nice: true },
    ],
    axes: [
      { ...AXIS, orient: "bottom", scale: "x", title: figure.dataset.x, tickCount: Math.max(3, width / 90), labelOverlap: true },
      { ...AXIS, orient: "left", scale: "y", titleLimit: height - 40, title: figure.dataset.y + (log ? " (logarithmic)" : ""), grid: true, tickCount: 5, labelOverlap: true, format: log ? ".1~e" : undefined },
    ],
    marks: [
      ...runs.map((run) => ({
        type: "line", name: `line-${run}`, from: { data: run },
        encode: { enter: {
          x, y: { scale: "y", field: "y" },
          stroke: { value: RUNS[run].color }, strokeWidth: { value: RUNS[run].width },
          strokeDash: { value: RUNS[run].dash }, strokeOpacity: { value: RUNS[run].opacity },
        } },
      })),
      ...runs.filter((run) => count(run) <= 12).map((run) => ({
        type: "symbol", name: `point-${run}`, from: { data: run },
        encode: { enter: {
          x, y: { scale: "y", field: "y" }, size: { value: run === "healthy" ? 90 : 30 },
          fill: { value: RUNS[run].color }, fillOpacity: { value: RUNS[run].opacity },
        } },
      })),
      {
        type: "symbol", name: "odd-point", from: { data: "odd" },
        encode: { enter: { x, y: { field: "edge" }, shape: { value: "cross" }, size: { value: 40 }, fill: { value: "var(--bad)" } } },
      },
      {
        type: "text", name: "odd-label", from: { data: "odd" },
        encode: { enter: {
          x, y: { field: "edge" }, dx: { value: -7 }, align: { value: "right" }, baseline: { value: "middle" }, text: { field: "label" },
          fill: { value: "var(--bad)" }, fontSize: { value: 12 }, fontWeight: { value: "bold" }, font: { value: FONT },
        } },
      },
    ],
  };
}

// One panel of a grid: a cell is the stronger, the larger its value is beside `most`, the largest of
// all panels; less than 0 has another colour.
function gridSpec(table, sides, most, width) {
  const rows = bodyRows(table).map((row) => row.slice(1));
  const columns = Math.max(...rows.map((row) => row.length));
  const side = Math.max(5, Math.min(34, 270 / Math.max(rows.length, columns), (width - 60) / columns));
  const values = rows.flatMap((row, r) => row.map((text, c) => {
    const value = number(text);
    const finite = isFinite(value);
    return {
      r, c, finite, share: finite && most > 0 ? Math.abs(value) / most : 0, negative: value < 0,
      label: finite ? String(Number(value.toPrecision(2))).replace(/^(-?)0\./, "$1.") : text,
    };
  }));
  const written = side >= 26 && values.every((cell) => cell.label.length <= 4);
  const place = (field, scale) => ({ scale, field, band: 0.5 });
  return {
    width: side * columns, height: side * rows.length, padding: 5,
    data: [{ name: "cells", values }],
    scales: [
      { name: "x", type: "band", domain: [...Array(columns).keys()], range: "width" },
      { name: "y", type: "band", domain: [...Array(rows.length).keys()], range: "height" },
    ],
    title: { text: table.dataset.run, anchor: "start", color: "var(--ink)", fontSize: 13, fontWeight: "normal", font: FONT },
    axes: [
      { ...AXIS, orient: "bottom", scale: "x", title: sides.column, labelOverlap: true, ticks: false, domain: false, labelAngle: 0 },
      { ...AXIS, orient: "left", scale: "y", title: sides.row, labelOverlap: true, ticks: false, domain: false },
    ],
    marks: [
      {
        type: "rect", name: "cell", from: { data: "cells" },
        encode: { enter: {
          x: { scale: "x", field: "c" }, width: { scale: "x", band: 1 },
          y: { scale: "y", field: "r" }, height: { scale: "y", band: 1 },
          fill: [
            { test: "!datum.finite", value: "var(--bad)" }, { test: "datum.negative", value: "var(--faulty)" },
            { value: "var(--healthy)" },
          ],
          fillOpacity: [{ test: "datum.finite", field: "share" }, { value: 1 }],
          stroke: { value: "var(--rule)" }, strokeWidth: { value: 1 },
        } },
      },
      ...(written ? [{
        type: "text", name: "value", from: { data: "cells" },
        encode: { enter: {
          x: place("c", "x"), y: place("r", "y"), text: { field: "label" },
          align: { value: "center" }, baseline: { value: "middle" }, fontSize: { value: 11 }, font: { value: FONT },
          fill: [{ test: "datum.finite && datum.share < 0.6", value: "var(--ink)" }, { value: "var(--paper)" }],
        } },
      }] : []),
    ],
  };
}

// The interpreter stands for code made from text, which the page's own policy forbids. Vega names the
// place after the description; for a reader of screens it is one image with that name.
function draw(spec, place) {
  const description = place.getAttribute("aria-label");
  const runtime = vega.parse({ ...spec, description }, null, { ast: true });
  new vega.View(runtime, { expr: vega.expressionInterpreter, renderer: "svg", container: place }).run();
  place.setAttribute("role", "img");
}

function drawFigure(figure) {
  const places = [...figure.querySelectorAll(".drawing")];
  const width = Math.min(figure.clientWidth, 700);
  places.forEach((place) => place.replaceChildren());
  if (figure.classList.contains("curve")) {
    draw(curveSpec(figure, width), places[0]);
  } else {
    const tables = [...figure.querySelectorAll("table")];
    const finite = tables.flatMap((table) => bodyRows(table).flatMap((row) => row.slice(1).map(number))).filter(isFinite);
    const most = Math.max(0, ...finite.map(Math.abs));
    tables.forEach((table, i) => draw(gridSpec(table, figure.dataset, most, width), places[i]));
  }
  figure.dataset.drawn = width;
}

function drawAll() {
  for (const figure of document.querySelectorAll(".picture")) {
    if (Number(figure.dataset.drawn) === Math.min(figure.clientWidth, 700)) continue;
    try {
      drawFigure(figure);
    } catch (error) {
      console.error(error);
      figure.querySelector(".drawing").textContent = `This picture could not be drawn (${error.message}); its numbers are below.`;
      figure.querySelector("details").open = true;
    }
  }
}

if (typeof vega !== "undefined") {
  drawAll();
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 150);
  });
}
