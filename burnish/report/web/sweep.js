"use strict";
// Runs of a sweep: a table of configurations with mean ± deviation over their seeds, and all runs as lines that cross
// one axis for each option.

const SWEPT = 6; // options that are shown, those with the fewest values first
const MEASURED = [["best", "best reward"], ["now", "reward now"], ["took", "seconds"]];
const SHADES = 6; // classes q0 ... q5 of the style sheet

// Configurations: runs that differ in their seed alone, with the values of the options in which configurations differ.
// An option that goes along with another, such as one that only some algorithm has, is left out.
function configurations(rows, options) {
  const ways = new Map(); // the first option by how it divides the runs
  for (const name of differing(rows, options).filter((one) => one !== "seed")) {
    const way = JSON.stringify([...grouped(rows, name, options).values()].map((some) => some.map((row) => row.id)));
    if (!ways.has(way)) ways.set(way, name);
  }
  const names = [...ways.values()];
  const groups = new Map();
  for (const row of rows) {
    const values = names.map((name) => valueOf(row, name, options)), key = JSON.stringify(values.map(shownValue));
    if (!groups.has(key)) groups.set(key, { values, runs: [] });
    groups.get(key).runs.push(row);
  }
  const distinct = (i) => new Set([...groups.values()].map((one) => shownValue(one.values[i]))).size;
  const places = names.map((_, i) => i).sort((a, b) => distinct(a) - distinct(b) || a - b);
  const kept = places.slice(0, SWEPT).sort((a, b) => a - b);
  return { names: kept.map((i) => names[i]), left: places.slice(SWEPT).map((i) => names[i]),
    groups: [...groups.values()].map((one) => ({ runs: one.runs, values: kept.map((i) => one.values[i]) })) };
}

// An axis of the drawing: where a value is between 0 and 1, and the values that are written beside it
function axisOf(values) {
  const known = values.filter((value) => value !== undefined);
  if (known.length && known.every((value) => typeof value === "number")) {
    const low = Math.min(...known), high = Math.max(...known), log = low > 0 && high / low >= 20;
    const scale = log ? Math.log : (value) => value;
    const place = (value) => (value === undefined ? null : high > low ? (scale(value) - scale(low)) / (scale(high) - scale(low)) : 0.5);
    const distinct = [...new Set(known)];
    return { place, labels: (distinct.length <= 6 ? distinct : [low, high]).map((value) => [place(value), String(Number(value.toPrecision(4)))]) };
  }
  const names = [...new Set(values.map(shownValue))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const place = (value) => (names.length > 1 ? names.indexOf(shownValue(value)) / (names.length - 1) : 0.5);
  const kept = names.length <= 12 ? names : [names[0], names[names.length - 1]];
  return { place, labels: kept.map((name) => [names.indexOf(name) / Math.max(names.length - 1, 1) || (names.length > 1 ? 0 : 0.5), name]) };
}

function sweepTable(found) {
  return found.groups.map(({ values, runs }) => ({ values, runs, best: spread(runs.map(FIELDS.best)), now: spread(runs.map(FIELDS.now)), took: spread(runs.map(FIELDS.took)) }));
}

function sweepCsv(rows, options) {
  const found = configurations(rows, options);
  return [[...found.names, "runs", ...MEASURED.flatMap(([name]) => [name, `${name} std`])], ...sweepTable(found).map((one) => [
    ...one.values.map((value) => (typeof value === "number" ? value : shownValue(value))), one.runs.length,
    ...MEASURED.flatMap(([name]) => [one[name].mean, one[name].std])])];
}

function sweep(rows, options, state, draw) {
  const found = configurations(rows, options);
  if (!found.names.length) return element("p", {}, "These runs differ in their seed alone, or there is only one. A sweep is runs with other values of an option.");
  const by = MEASURED.some(([name]) => name === state.measure) ? state.measure : "best";
  const way = by === "took" ? 1 : -1;
  const table = sweepTable(found).sort((a, b) => way * ((a[by].mean ?? Infinity * way) - (b[by].mean ?? Infinity * way)) || 0);
  const cell = (name, one) => (one.mean === null ? "–" : `${name === "took" ? seconds(one.mean) : number(one.mean)}${one.std === null ? "" : ` ± ${name === "took" ? seconds(one.std) : number(one.std)}`}`);
  return [element("div.tools", {}, choice("sorted by", MEASURED, by, (measure) => { state.measure = measure; draw(); })),
  parallel(rows, found, options, by),
  element("div.wide", {}, element("table.sweep", {}, element("caption.soft", {}, "Mean ± standard deviation over runs that differ in their seed alone."),
    element("thead", {}, element("tr", {}, found.names.map((name) => element("th", { scope: "col" }, name)), element("th.n", { scope: "col" }, "runs"),
      MEASURED.map(([name, text]) => element("th.n", { scope: "col", "aria-sort": name === by ? (way < 0 ? "descending" : "ascending") : undefined }, text)))),
    element("tbody", {}, table.map((one) => element("tr", {}, one.values.map((value) => element("td", {}, element("code", {}, shownValue(value)))),
      element("td.n", {}, one.runs.length === 1 ? element("a", { href: runHash(one.runs[0].id) }, "1")
        : element("a", { href: compareHash(one.runs.slice(0, MOST_COMPARED).map((run) => run.id)) }, one.runs.length)),
      MEASURED.map(([name]) => element(name === by ? "td.n.now" : "td.n", {}, cell(name, one[name])))))))),
  found.left.length ? element("p.soft", {}, `These differ too, with more values: ${found.left.join(", ")}.`) : null];
}

// Parallel coordinates; the table below says the same in words
function parallel(rows, found, options, by) {
  const width = broad(), height = 260, top = 44, bottom = height - 14, left = 16, right = width - 56;
  const names = [...found.names, by], title = Object.fromEntries(MEASURED)[by];
  const axes = names.map((name) => axisOf(rows.map((row) => valueOf(row, name, options))));
  const x = (i) => left + (right - left) * i / (names.length - 1), y = (share) => bottom - (bottom - top) * share;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${plural(rows.length, "run")} over ${found.names.join(", ")}, coloured by ${title}` });
  const shade = axes[axes.length - 1].place;
  for (const row of rows) {
    const shares = axes.map((axis, i) => axis.place(valueOf(row, names[i], options)));
    const level = shade(valueOf(row, by, options));
    const line = element(`path.line.run-line.q${level === null ? 0 : Math.round(level * (SHADES - 1))}`, { d: path(shares.map((_, i) => i), shares, x, y) });
    const about = document.createElementNS(SVG, "title");
    about.textContent = `${row.name}: ${title} ${by === "took" ? seconds(FIELDS.took(row)) : number(FIELDS[by](row))}`;
    append(svg, [append(line, [about])]);
  }
  axes.forEach((axis, i) => append(svg, [element("path.axis", { d: `M${x(i).toFixed(1)} ${top}V${bottom}` }),
    element(i ? "text.middle" : "text", { x: i ? Math.min(x(i), width - 40) : 2, y: i % 2 ? 26 : 12 }, i < found.names.length ? names[i].split(".").slice(-2).join(".").slice(-18) : title),
    axis.labels.map(([share, text]) => element("text.label", { x: (x(i) + 5).toFixed(1), y: (y(share) + 3.5).toFixed(1) }, text.slice(0, 18)))]));
  return element("figure.chart.broad", {}, svg);
}
