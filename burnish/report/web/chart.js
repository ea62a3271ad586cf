"use strict";
// Line charts as SVG: several lines with bands over policy updates, read by pointer, touch or keyboard.

const COLOURS = 8; // classes c0 ... c7 of the style sheet

function ticks(low, high, integer) {
  if (high - low <= 1e-12 * Math.max(Math.abs(low), Math.abs(high))) {
    const margin = Math.abs(low) * 0.1 || 1;
    low -= margin; high += margin;
  }
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough * (1 - 1e-9));
  if (integer) step = Math.max(1, Math.round(step));
  const found = [];
  for (let k = Math.floor(low / step + 1e-9); k <= Math.ceil(high / step - 1e-9); k++) found.push(k * step);
  return found;
}

function tick(value, step, percent) {
  if (percent) return `${Math.round(100 * value)} %`;
  if (Math.abs(value) < 1e-9 * step) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e4) return value.toExponential(1).replace("e+", "e").replace(".0e", "e").replaceAll("-", "−");
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))).replaceAll("-", "−");
}

function rangeOf(chart, lines) {
  let low = Infinity, high = -Infinity;
  for (const line of lines) {
    for (const values of [line.y, line.low, line.high]) {
      for (const value of values || []) {
        if (value === null) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
  }
  if (chart.reference) { low = Math.min(low, chart.reference.y); high = Math.max(high, chart.reference.y); }
  if (chart.zero) { low = Math.min(low, 0); high = Math.max(high, 0); }
  const lack = (chart.span || 0) - (high - low);
  if (lack > 0) {
    let below = low >= 0 ? Math.min(lack / 2, low) : lack / 2;
    if (chart.percent && high <= 1 && high + lack - below > 1) below = lack - (1 - high);
    low -= below; high += lack - below;
  }
  return [low, high];
}

function path(xs, ys, x, y) {
  let pen = "M", text = "";
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null) { pen = "M"; continue; }
    text += `${pen}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

function bandPath(line, x, y) {
  const rows = line.x.map((_, i) => i).filter((i) => line.low[i] !== null && line.high[i] !== null);
  if (rows.length < 2) return "";
  const over = rows.map((i) => `${x(line.x[i]).toFixed(1)} ${y(line.high[i]).toFixed(1)}`);
  const under = rows.reverse().map((i) => `${x(line.x[i]).toFixed(1)} ${y(line.low[i]).toFixed(1)}`);
  return `M${over.join("L")}L${under.join("L")}Z`;
}

// A chart: {title, note, series: [{name, style, x, y, low, high}], percent, reference}
function drawChart(chart, last, options) {
  const { width, height } = { width: 360, height: 190, ...options };
  const lines = chart.series.filter((line) => line.y.some((value) => value !== null));
  if (!lines.length) return element("figure.chart", {}, caption(chart), element("p.soft", {}, "no values yet"));
  const [low, high] = rangeOf(chart, lines);
  const steps = ticks(low, high), step = steps[1] - steps[0];
  const bottom = Math.min(steps[0], low), top = Math.max(steps[steps.length - 1], high);
  const labels = steps.map((one) => tick(one, step, chart.percent));
  const left = Math.max(40, 8 + 6 * Math.max(...labels.map((text) => text.length)));
  const x = (update) => left + (width - 10 - left) * update / Math.max(last, 1);
  const y = (value) => 10 + (height - 36) * (1 - (value - bottom) / (top - bottom || 1));
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${chart.title}, over policy updates: ${spoken(lines, chart)}` });
  steps.forEach((one, i) => append(svg, [
    element("path.rule", { d: `M${left} ${y(one).toFixed(1)}H${width - 10}` }),
    element("text.end", { x: left - 6, y: (y(one) + 3.5).toFixed(1) }, labels[i]),
  ]));
  for (const one of ticks(0, Math.max(last, 1), true).filter((at) => at <= Math.max(last, 1))) {
    const text = String(one);
    append(svg, [element("text.middle", { x: Math.min(x(one), width - 3 * text.length).toFixed(1), y: height - 8 }, text)]);
  }
  if (chart.reference) append(svg, [element("path.line.reference", { d: `M${left} ${y(chart.reference.y).toFixed(1)}H${width - 10}` })]);
  for (const line of lines) if (line.low) append(svg, [element(`path.band.${line.style}`, { d: bandPath(line, x, y) })]);
  for (const line of lines) {
    append(svg, [element(`path.line.${line.style}`, { d: path(line.x, line.y, x, y) })]);
    if (line.style === "validation" && line.x.length <= 40 || line.x.length === 1) {
      line.x.forEach((at, i) => line.y[i] !== null && append(svg, [
        element(`circle.dot.${line.style}`, { cx: x(at).toFixed(1), cy: y(line.y[i]).toFixed(1), r: 3 })]));
    }
  }
  const readout = element("div.readout", { "aria-live": "off" });
  const figure = element("figure.chart", { tabindex: 0 }, caption(chart), svg, legend(chart, lines), readout);
  reading(figure, svg, readout, { lines, x, left, width, height, last, percent: chart.percent });
  return figure;
}

function caption(chart) {
  const also = chart.also && chart.also.length ? `; the same as ${chart.also.slice(0, 6).join(", ")}` : "";
  const note = `${chart.note || ""}${also}`.replace(/^; /, "");
  return element("figcaption", {}, chart.title, note && element("small", {}, note));
}

function spoken(lines, chart) {
  return lines.slice(0, 4).map((line) => {
    const known = line.y.filter((value) => value !== null);
    return `${line.name} from ${number(known[0])} to ${number(known[known.length - 1])}`;
  }).join("; ") + (chart.percent ? " (shares)" : "");
}

function legend(chart, lines) {
  const items = lines.map((line) => [line.style, line.name]);
  if (chart.reference) items.push(["reference", chart.reference.name]);
  if (items.length < 2) return null;
  return element("ul.legend", {}, items.map(([style, name]) => element("li", {},
    element("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, element(`path.line.${style}`, { d: "M1 4H21" })),
    element("span", {}, name))));
}

// The values at an update, under the pointer or by the arrow keys
function reading(figure, svg, readout, about) {
  const cursor = element("path.cursor", {});
  svg.appendChild(cursor);
  const updates = [...new Set(about.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  let place = -1;
  const show = (at) => {
    place = Math.max(0, Math.min(updates.length - 1, at));
    const update = updates[place];
    cursor.setAttribute("d", `M${about.x(update).toFixed(1)} 10V${about.height - 26}`);
    const parts = about.lines.map((line) => {
      const row = nearest(line.x, update);
      if (row < 0 || line.y[row] === null || Math.abs(line.x[row] - update) > Math.max(1, about.last / 40)) return null;
      const digits = about.percent ? `${number(100 * line.y[row], 1)} %` : number(line.y[row]);
      const interval = line.low && line.low[row] !== null && line.low[row] !== line.high[row]
        ? ` [${about.percent ? number(100 * line.low[row], 1) : number(line.low[row])}, ${about.percent ? number(100 * line.high[row], 1) : number(line.high[row])}]` : "";
      return `${about.lines.length > 1 ? line.name + " " : ""}${digits}${interval}`;
    }).filter(Boolean);
    readout.textContent = `update ${update}: ${parts.join(" · ")}`;
  };
  const hide = () => { cursor.removeAttribute("d"); readout.textContent = ""; place = -1; };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * about.width;
    show(nearest(updates, (at - about.left) / (about.width - 10 - about.left) * Math.max(about.last, 1)));
  });
  svg.addEventListener("pointerleave", hide);
  figure.addEventListener("blur", hide);
  figure.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    show(place < 0 ? (way > 0 ? 0 : updates.length - 1) : place + way);
  });
}

function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return low > 0 && Math.abs(sorted[low - 1] - value) <= Math.abs(sorted[low] - value) ? low - 1 : low;
}

function sparkline(values, label) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return element("span.soft", {}, "–");
  const low = Math.min(...known), high = Math.max(...known), most = Math.max(values.length - 1, 1);
  const x = (i) => 2 + 76 * i / most, y = (value) => 18 - 14 * (high > low ? (value - low) / (high - low) : 0.5);
  return element("svg.spark", { viewBox: "0 0 80 22", role: "img", "aria-label": label || `from ${number(known[0])} to ${number(known[known.length - 1])}` },
    element("path.line.validation", { d: path(values.map((_, i) => i), values, x, y) }),
    element("circle.dot.validation", { cx: x(values.length - 1), cy: y(known[known.length - 1]), r: 2.2 }));
}
