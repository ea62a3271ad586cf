"use strict";
// Line charts as SVG: several lines with bands, read and zoomed by pointer, touch or keyboard. What is drawn where is
// computed by functions of numbers, which know no page.

const COLOURS = 8; // classes c0 ... c7 of the style sheet
const AXES = [["update", "step"], ["samples", "samples"], ["seconds", "time"]];

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

// Powers of ten, with what lies between them where there are few
function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), decades = Math.ceil(Math.log10(high)) - first + 1;
  const every = Math.ceil(decades / 6), factors = decades > 4 ? [1] : [1, 2, 5];
  const found = Array.from({ length: Math.ceil(decades / every) }, (_, k) => 10 ** (first + k * every))
    .flatMap((power) => factors.map((factor) => factor * power)).filter((one) => one >= low * (1 - 1e-9) && one <= high * (1 + 1e-9));
  return found.length > 1 ? found : ticks(low, high).filter((one) => one > 0);
}

// A number beside an axis, with the digits that a step needs; without one, with its own
function tick(value, step, percent) {
  if (percent) return `${Number((100 * value).toFixed(step < 0.01 ? 1 : 0))} %`;
  if (Math.abs(value) < 1e-9 * step) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e4) return value.toExponential(1).replace("e+", "e").replace(".0e", "e").replaceAll("-", "−");
  if (step === undefined) return String(Number(value.toPrecision(3)));
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))).replaceAll("-", "−");
}

// The value of a line at a place, between its neighbours where it has none there; null outside of it
function valueAt(line, place) {
  const after = line.x.findIndex((at) => at >= place);
  if (after < 0) return null;
  if (line.x[after] === place) return line.y[after];
  if (after === 0 || line.y[after] === null || line.y[after - 1] === null) return null;
  const share = (place - line.x[after - 1]) / (line.x[after] - line.x[after - 1]);
  return line.y[after - 1] + share * (line.y[after] - line.y[after - 1]);
}

// A line over the samples or the time that its run had used at each update
function along(line, axes, view) {
  if (view.axis === "update") return line;
  const used = { x: axes.update, y: axes[view.axis] };
  return { ...line, x: line.x.map((update) => (valueAt(used, update) ?? 0) / view.unit) };
}

// A moving average whose weights fall with every 50th of a line's length, however many points it has. A line that was
// thinned out goes through means of all its values.
function smoothed(line, weight) {
  const { x } = line, values = line.mean || line.y, step = (x[x.length - 1] - x[0]) / 50 || 1;
  let sum = 0, mass = 0, before = null;
  return values.map((value, i) => {
    if (value === null) return null;
    const kept = before === null ? weight : weight ** ((x[i] - before) / step);
    before = x[i];
    sum = kept * sum + (1 - kept) * value;
    mass = kept * mass + (1 - kept);
    return sum / mass;
  });
}

function timeUnit(seconds) {
  return seconds < 180 ? [1, "s"] : seconds < 10800 ? [60, "min"] : [3600, "h"];
}

// How charts are looked at, from what an address keeps; `ends` are the last update, sample and second
function viewOf(state, ends) {
  const axis = AXES.some(([name]) => name === state.axis) && ends[state.axis] ? state.axis : "update";
  const [unit, name] = axis === "seconds" ? timeUnit(ends.seconds) : [1, axis === "update" ? "update" : "samples"];
  const last = ends[axis] / unit || 1, from = Math.min(Math.max(0, Number(state.from) || 0), last);
  const to = Number(state.to) > from ? Math.min(Number(state.to), last) : last;
  return { axis, unit, name, last, from: from < to ? from : 0, to, log: String(state.log) === "true", smooth: Math.min(0.99, Number(state.smooth) || 0) };
}

function rangeOf(chart, lines, view) {
  let low = Infinity, high = -Infinity;
  const take = (value) => {
    if (value === null || value === undefined) return;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const line of lines) {
    for (const values of [line.y, line.low, line.high]) {
      if (!values) continue;
      values.forEach((value, i) => line.x[i] >= view.from && line.x[i] <= view.to && take(value));
      for (const end of [view.from, view.to]) take(valueAt({ x: line.x, y: values }, end));
    }
  }
  if (chart.reference && (!view.log || chart.reference.y > 0)) take(chart.reference.y);
  if (low > high) return null;
  if (view.log) return [low, high];
  if (chart.zero) take(0);
  const lack = (chart.span || 0) - (high - low);
  if (lack > 0) {
    let below = low >= 0 ? Math.min(lack / 2, low) : lack / 2;
    if (chart.percent && high <= 1 && high + lack - below > 1) below = lack - (1 - high);
    low -= below; high += lack - below;
  }
  return [low, high];
}

// Where everything of a chart is: its lines, its scales, and the texts of both axes; null without a value in view
function frame(chart, view, width, height) {
  const fits = (value) => (value !== null && value !== undefined && (!view.log || value > 0) ? value : null);
  const lines = chart.series.map((line) => {
    const clean = { ...line, y: line.y.map(fits), raw: null };
    for (const side of ["mean", "low", "high"]) if (line[side]) clean[side] = line[side].map(fits);
    return view.smooth ? { ...clean, raw: clean.y, y: smoothed(clean, view.smooth) } : clean;
  }).filter((line) => line.y.some((value) => value !== null));
  const range = rangeOf(chart, lines.map((line) => ({ ...line, y: line.raw || line.y })), view);
  if (!range) return null;
  const [low, high] = range, scale = view.log ? Math.log10 : (value) => value;
  const steps = view.log ? logTicks(low, high) : ticks(low, high), apart = steps[1] - steps[0];
  const bottom = scale(Math.min(steps[0], low)), top = scale(Math.max(steps[steps.length - 1], high));
  const labels = steps.map((one) => tick(one, view.log ? undefined : apart, chart.percent));
  const left = Math.max(40, 8 + 6 * Math.max(...labels.map((text) => text.length)));
  const x = (at) => left + (width - 10 - left) * (at - view.from) / (view.to - view.from);
  const y = (value) => 10 + (height - 36) * (1 - (scale(value) - bottom) / (top - bottom || 1));
  const places = ticks(view.from, view.to, view.axis === "update");
  const under = places.filter((at) => at >= view.from && at <= view.to * (1 + 1e-9)).map((at) => [at, tick(at, places[1] - places[0])]);
  return { lines, left, width, height, x, y, beside: steps.map((one, i) => [one, labels[i]]), under,
    at: (pixel) => view.from + (view.to - view.from) * Math.min(1, Math.max(0, (pixel - left) / (width - 10 - left))) };
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

// All points that charts show, as rows of a table: one for each place on the axis, one column for each line
function chartTable(charts, name) {
  const lines = charts.flatMap((chart) => chart.series.map((line) => ({ ...line, title: chart.series.length > 1 ? `${chart.title} (${line.name})` : chart.title })));
  const places = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const values = lines.flatMap((line) => [["", line.y], [" low", line.low], [" high", line.high]].filter(([, y]) => y)
    .map(([side, y]) => [line.title + side, new Map(line.x.map((at, i) => [at, y[i]]))]));
  return [[name, ...values.map(([title]) => title)], ...places.map((at) => [at, ...values.map(([, known]) => known.get(at) ?? null)])];
}

// ---- the page: what charts have in common, and each of them

// The view that all charts of a page share: what chooses it, and what draws them anew
function chartView(state, ends, changed) {
  const painters = new Set();
  const end = (name, label) => element("input", { type: "number", step: "any", min: 0, "aria-label": label,
    onchange: () => look.set({ [name]: Number(edges[name].value) }) });
  const edges = { from: end("from", "first value of the x-axis"), to: end("to", "last value of the x-axis") };
  const whole = element("button", { type: "button", onclick: () => look.set({ from: undefined, to: undefined }) }, "whole range");
  const show = () => {
    const view = look.get();
    for (const name of ["from", "to"]) edges[name].value = Number(view[name].toPrecision(4));
    whole.disabled = view.from === 0 && view.to === view.last;
    unit.textContent = view.axis === "update" ? "" : view.name;
  };
  const unit = element("span", {});
  const smooth = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smooth || 0, "aria-label": "smoothing", oninput: () => look.set({ smooth: Number(smooth.value) }) });
  const look = { painters, get: () => viewOf(state, ends), paint: () => painters.forEach((paint) => paint()),
    set: (values) => { Object.assign(state, values); show(); changed(); look.paint(); } };
  look.tools = element("div.tools", { role: "group", "aria-label": "axes" },
    choice("x-axis", AXES.filter(([name]) => name === "update" || ends[name]), look.get().axis, (axis) => look.set({ axis, from: undefined, to: undefined })),
    element("span.choice", {}, edges.from, "–", edges.to, unit, whole),
    element("label.choice", {}, element("span", {}, "smoothing"), smooth),
    toggle("log scale", look.get().log, (log) => look.set({ log })));
  show();
  return look;
}

// A view of whole curves, as they were logged
const plainView = (last) => ({ painters: new Set(), get: () => viewOf({}, { update: last }) });

// A chart that is drawn when it comes near: `make` gives {title, note, series: [{name, style, x, y, low, high}], ...}
function chartBox(look, make) {
  const figure = element("figure.chart.later", { tabindex: 0 });
  const paint = () => drawChart(figure, make(look.get()), look);
  board.lazily(figure, () => { figure.classList.remove("later"); look.painters.add(paint); paint(); });
  return figure;
}

function drawChart(figure, chart, look) {
  const view = look.get(), drawn = frame(chart, view, 360, 190);
  if (!drawn) { fill(figure, caption(chart), element("p.soft", {}, view.log ? "no values above 0 here" : "no values here")); return; }
  const { lines, left, width, height, x, y } = drawn;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${chart.title}, over ${view.axis === "seconds" ? "time" : view.name + (view.axis === "update" ? "s" : "")}: ${spoken(lines, chart)}` });
  for (const [one, text] of drawn.beside) append(svg, [
    element("path.rule", { d: `M${left} ${y(one).toFixed(1)}H${width - 10}` }),
    element("text.end", { x: left - 6, y: (y(one) + 3.5).toFixed(1) }, text),
  ]);
  for (const [at, text] of drawn.under) append(svg, [element("text.middle", { x: Math.min(x(at), width - 3 * text.length).toFixed(1), y: height - 8 }, text)]);
  const inside = element("svg", { x: left - 4, y: 0, width: width - left - 2, height: height - 18, viewBox: `${left - 4} 0 ${width - left - 2} ${height - 18}` });
  if (chart.reference && (!view.log || chart.reference.y > 0)) append(inside, [element("path.line.reference", { d: `M${left} ${y(chart.reference.y).toFixed(1)}H${width - 10}` })]);
  for (const line of lines) if (line.low) append(inside, [element(`path.band.${line.style}`, { d: bandPath(line, x, y) })]);
  for (const line of lines) {
    if (line.raw) append(inside, [element(`path.line.raw.${line.style}`, { d: path(line.x, line.raw, x, y) })]);
    append(inside, [element(`path.line.${line.style}`, { d: path(line.x, line.y, x, y) })]);
    if (line.style === "validation" && line.x.length <= 40 || line.x.length === 1) {
      line.x.forEach((at, i) => line.y[i] !== null && append(inside, [
        element(`circle.dot.${line.style}`, { cx: x(at).toFixed(1), cy: y(line.y[i]).toFixed(1), r: 3 })]));
    }
  }
  append(svg, [inside]);
  const readout = element("div.readout", { "aria-live": "off" });
  fill(figure, caption(chart), svg, legend(chart, lines), readout);
  reading(figure, svg, readout, chart, drawn, look);
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

// What lines are at a place, as a sentence
function valuesAt(place, lines, chart, view) {
  const text = (value) => (chart.percent ? `${number(100 * value, 1)} %` : number(value));
  const parts = lines.map((line) => {
    const row = nearest(line.x, place);
    if (row < 0 || line.y[row] === null || Math.abs(line.x[row] - place) > Math.max(view.axis === "update" ? 1 : 0, (view.to - view.from) / 40)) return null;
    const band = line.low && line.low[row] !== null && line.low[row] !== line.high[row] ? ` [${text(line.low[row])}, ${text(line.high[row])}]` : "";
    const value = line.raw ? `${text(line.raw[row])} (smoothed ${text(line.y[row])})` : text(line.y[row]);
    return `${lines.length > 1 ? line.name + " " : ""}${value}${band}`;
  }).filter(Boolean);
  const where = view.axis === "update" ? `update ${place}` : `${Number(place.toPrecision(4))} ${view.name}`;
  return `${where}: ${parts.join(" · ")}`;
}

// The values under the pointer or by the arrow keys; dragging, + and − zoom, a double click and 0 show everything
function reading(figure, svg, readout, chart, drawn, look) {
  const cursor = element("path.cursor", {}), chosen = element("rect.chosen", { y: 10, height: drawn.height - 36 });
  append(svg, [chosen, cursor]);
  const view = look.get(), places = [...new Set(drawn.lines.flatMap((line) => line.x))].filter((at) => at >= view.from && at <= view.to).sort((a, b) => a - b);
  let place = places.indexOf(figure.place), pressed = null;
  const show = (at) => {
    if (!places.length) return;
    place = Math.max(0, Math.min(places.length - 1, at));
    figure.place = places[place];
    cursor.setAttribute("d", `M${drawn.x(figure.place).toFixed(1)} 10V${drawn.height - 26}`);
    readout.textContent = valuesAt(figure.place, drawn.lines, chart, view);
  };
  const hide = () => { cursor.removeAttribute("d"); readout.textContent = ""; place = -1; figure.place = undefined; };
  const zoom = (from, to) => look.set && look.set(to > from ? { from, to } : { from: undefined, to: undefined });
  const where = (event) => {
    const box = svg.getBoundingClientRect();
    return drawn.at((event.clientX - box.left) / box.width * drawn.width);
  };
  const span = (event) => [pressed, where(event)].sort((a, b) => a - b);
  svg.addEventListener("pointermove", (event) => {
    readout.setAttribute("aria-live", "off");
    show(nearest(places, where(event)));
    if (pressed === null) return;
    const [from, to] = span(event).map(drawn.x);
    chosen.setAttribute("x", from.toFixed(1));
    chosen.setAttribute("width", (to - from).toFixed(1));
  });
  svg.addEventListener("pointerdown", (event) => {
    if (!look.set || event.pointerType === "touch" || event.button) return;
    pressed = where(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointerup", (event) => {
    if (pressed === null) return;
    const [from, to] = span(event);
    pressed = null;
    chosen.removeAttribute("width");
    if (drawn.x(to) - drawn.x(from) > 6) zoom(from, to);
  });
  svg.addEventListener("pointercancel", () => { pressed = null; chosen.removeAttribute("width"); });
  svg.addEventListener("pointerleave", () => pressed === null && hide());
  svg.addEventListener("dblclick", () => zoom());
  figure.onblur = hide;
  figure.onkeydown = (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (!way && !(look.set && (factor || event.key === "0")) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    readout.setAttribute("aria-live", "polite");
    if (way) { show(place < 0 ? (way > 0 ? 0 : places.length - 1) : place + way); return; }
    const half = factor * (view.to - view.from) / 2, middle = figure.place ?? (view.from + view.to) / 2;
    if (factor) zoom(Math.max(0, middle - half), Math.min(view.last, middle + half)); else zoom();
  };
  if (place >= 0) show(place);
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
