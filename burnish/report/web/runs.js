"use strict";
// The table of runs, which follows what happens in the folder: sorted, filtered and grouped by any option.

const STATES = { running: "running", finished: "finished", stopped: "stopped" };
const FIELDS = { // what a row says beside its options, by the word that a filter and a column know it by
  run: (row) => row.name, state: (row) => row.state, updates: (row) => row.updates, best: (row) => row.best && row.best.reward,
  now: (row) => row.last, took: (row) => row.seconds, changed: (row) => row.changed,
};
const HEADS = [["run", "run"], ["updates", "updates"], ["", "validation reward"], ["best", "best"], ["now", "now"], ["took", "took"], ["changed", "last change"]];
const MOST_COMPARED = 12;
const NO_CHOICE = ["output_dir", "resume"]; // options that say nothing about a run

async function optionsOfRuns() {
  const { runs, values } = await board.get("options");
  return { runs: new Map(runs.map((id, i) => [id, i])), values };
}

// An option's value, or what the table says of a run; undefined where it has none. Values that all runs share come once.
function valueOf(row, name, options) {
  if (FIELDS[name]) return FIELDS[name](row) ?? undefined;
  const values = options.values[name], text = Array.isArray(values) ? values[options.runs.get(row.id)] : values;
  if (text === undefined || text === null) return undefined;
  try { return JSON.parse(text); } catch { return text; }
}

const shownValue = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));

// Whether a run has all words of a filter: text, #tags, or a comparison such as lr=0.001, best>0.9, algorithm.name!=awm
function matches(row, query, options) {
  const about = `${row.name} ${row.algorithm} ${row.model} ${row.state} ${row.task} ${row.notes}`.toLowerCase();
  return (query.match(/(?:[^\s"]|"[^"]*")+/g) || []).every((quoted) => {
    const word = quoted.replaceAll('"', "");
    const [, name, sign, wanted] = /^([\w.]+)(!=|=|<|>)(.*)$/.exec(word) || [];
    if (!name) return about.includes(word.toLowerCase());
    const names = [...Object.keys(FIELDS), ...Object.keys(options.values)].filter((one) => one === name || one === `${name}.name` || one.endsWith(`.${name}`));
    const holds = names.some((one) => {
      const value = valueOf(row, one, options), text = shownValue(value);
      if (sign === "<") return value < Number(wanted);
      if (sign === ">") return value > Number(wanted);
      return text === wanted || typeof value === "number" && wanted !== "" && value === Number(wanted);
    });
    return sign === "!=" ? names.length > 0 && !matches(row, `"${name}=${wanted}"`, options) : holds;
  });
}

// Rows in the order of a column; those without a value are last, whichever way
function ordered(rows, name, down, options) {
  if (!name) return rows;
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : shownValue(a).localeCompare(shownValue(b), "en", { numeric: true }));
  return rows.map((row) => [row, valueOf(row, name, options)]).sort(([, a], [, b]) => (
    a === undefined || b === undefined ? (a === undefined) - (b === undefined) : (down ? -1 : 1) * compare(a, b))).map(([row]) => row);
}

// Rows by the value of an option, in the order in which values occur
function grouped(rows, name, options) {
  const groups = new Map();
  for (const row of rows) {
    const key = shownValue(valueOf(row, name, options));
    groups.set(key, [...(groups.get(key) || []), row]);
  }
  return groups;
}

// Options in which runs differ: what can be filtered, grouped and swept by
function differing(rows, options) {
  return Object.keys(options.values).filter((name) => Array.isArray(options.values[name]) && !NO_CHOICE.includes(name) && grouped(rows, name, options).size > 1);
}

board.views.runs = async function (place, state) {
  let [found, options] = await Promise.all([board.get("runs"), optionsOfRuns()]);
  const chosen = state.chosen || (state.chosen = new Set());
  for (const id of [...chosen]) if (!found.runs.some((one) => one.id === id)) chosen.delete(id);
  const images = new Map(); // kept when the table is drawn again, so that none flickers
  const button = element("button.primary", { type: "button", onclick: () => { location.hash = compareHash([...chosen]); } });
  const count = () => {
    button.textContent = chosen.size > 1 ? `compare ${chosen.size} runs` : "choose runs to compare";
    button.disabled = chosen.size < 2 || chosen.size > MOST_COMPARED;
    if (chosen.size > MOST_COMPARED) button.textContent = `at most ${MOST_COMPARED} runs are compared, ${chosen.size} are chosen`;
  };
  const choose = (ids, on) => {
    for (const id of ids) if (on) chosen.add(id); else chosen.delete(id);
    draw();
  };
  const body = element("div"), said = element("span.soft", { role: "status" }), tools = element("div.tools");
  const search = element("input", { type: "search", placeholder: "words, #tag, lr=0.001, best>0.9", value: state.find || "", "aria-label": "find runs: words, tags of their notes, or comparisons such as lr=0.001",
    oninput: () => { state.find = search.value; draw(); } });
  const rows = () => ordered(found.runs.filter((one) => matches(one, state.find || "", options)), state.sort, String(state.down) === "true", options);
  const sort = (name) => {
    const down = state.sort === name ? String(state.down) !== "true" : name !== "run";
    Object.assign(state, { sort: name, down });
    draw();
  };
  const draw = () => {
    board.keep("", [], state);
    const shown = rows(), focus = document.activeElement && document.activeElement.dataset.key;
    count();
    said.textContent = shown.length < found.runs.length ? `${shown.length} of ${plural(found.runs.length, "run")}` : plural(shown.length, "run");
    if (state.view === "sweep") fill(body, sweep(shown, options, state, draw));
    else fill(body, runTable(shown, options, state, { chosen, choose, count, images, sort }));
    if (!found.runs.length) fill(body, element("p", {}, "There are no runs in this folder yet. One that is started appears here by itself."));
    if (focus) [...body.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focus)?.focus();
  };
  const toolbar = () => {
    const names = differing(found.runs, options);
    fill(tools, search, names.length > 0 && filterChoice(found.runs, names, options, (word) => {
      state.find = search.value = `${search.value} ${word}`.trim();
      draw();
    }), names.length > 0 && choice("group by", [["", "nothing"], ...names.map((name) => [name, name])], state.group || "", (name) => { state.group = name; draw(); }),
    chips("view", [["", "list"], ["sweep", "sweep"]], state.view || "", (view) => { state.view = view; draw(); }),
    download("runs", () => (state.view === "sweep" ? sweepCsv(rows(), options) : runsCsv(rows(), names, options))), button, said);
  };
  fill(place, element("header.top", {}, element("h1", {}, "Runs"), element("p.soft", {}, found.folder)), tools, body);
  toolbar();
  draw();
  let last = JSON.stringify(found.runs);
  return async () => {
    const data = await board.get("runs");
    const text = JSON.stringify(data.runs);
    if (text === last) return;
    last = text;
    if (data.runs.some((row) => !options.runs.has(row.id))) {
      options = await optionsOfRuns();
      if (!tools.contains(document.activeElement)) toolbar();
    }
    found = data;
    draw();
  };
};

// Every value of an option that not each run has for itself, as a word of the filter
function filterChoice(rows, names, options, add) {
  const select = element("select", { "aria-label": "filter by option", onchange: () => { if (select.value) add(select.value); select.value = ""; } },
    element("option", { value: "" }, "filter by option …"),
    names.map((name) => [name, [...grouped(rows, name, options).keys()]]).filter(([, values]) => values.length <= 20).map(([name, values]) => element("optgroup", { label: name },
      values.map((value) => element("option", { value: /\s/.test(value) ? `"${name}=${value}"` : `${name}=${value}` }, `${name} = ${value}`)))));
  return select;
}

function runsCsv(rows, names, options) {
  return [[...Object.keys(FIELDS), "notes", ...names], ...rows.map((row) => [...Object.values(FIELDS).map((value) => value(row)), row.notes,
    ...names.map((name) => { const value = valueOf(row, name, options); return typeof value === "number" ? value : shownValue(value); })])];
}

function runTable(rows, options, state, about) {
  const all = rows.length > 0 && rows.every((row) => about.chosen.has(row.id));
  const ids = rows.map((row) => row.id), down = String(state.down) === "true";
  const head = element("div.run.head", { role: "row" },
    element("span", { role: "columnheader" }, element("input", { type: "checkbox", checked: all, "aria-label": "choose all that are shown", "data-key": "box of all", onchange: () => about.choose(ids, !all) })),
    element("span", { role: "columnheader" }, "newest"),
    HEADS.map(([name, text]) => element("span", { role: "columnheader", "aria-sort": state.sort === name && name ? (down ? "descending" : "ascending") : undefined },
      name ? element("button.link", { type: "button", "data-key": `sort ${name}`, onclick: () => about.sort(name) }, text, element("span", { "aria-hidden": "true" }, state.sort === name ? (down ? " ↓" : " ↑") : " ↕")) : text)));
  const lines = (some) => some.map((one) => runLine(one, about));
  return element("div.table-runs", { role: "table", "aria-label": "runs" }, head, state.group
    ? [...grouped(rows, state.group, options)].map(([value, some]) => element("div", { role: "rowgroup" }, groupHead(state.group, value, some, about), lines(some)))
    : lines(rows));
}

function groupHead(name, value, some, about) {
  const ids = some.map((one) => one.id), all = ids.every((id) => about.chosen.has(id));
  return element("div.group-head", { role: "row" }, element("span", { role: "rowheader" },
    element("label.toggle", {}, element("input", { type: "checkbox", checked: all, "data-key": `box of ${value}`, onchange: () => about.choose(ids, !all) }), `${name} = ${value}`)),
  element("span.soft", { role: "cell" }, `${plural(some.length, "run")} · best ${plusMinus(some.map(FIELDS.best))} · now ${plusMinus(some.map(FIELDS.now))}`));
}

function runLine(one, about) {
  const href = runHash(one.id);
  const box = element("input", { type: "checkbox", checked: about.chosen.has(one.id), "aria-label": `compare ${one.name}`, "data-key": `box ${one.id}`,
    onchange: () => { if (box.checked) about.chosen.add(one.id); else about.chosen.delete(one.id); about.count(); } });
  const share = one.steps ? Math.min(100, 100 * one.updates / one.steps) : 0;
  const words = one.error ? "its configuration can't be read" : [one.algorithm, one.model, one.lr ? `lr ${one.lr}` : "", one.seed === null || one.seed === undefined ? "" : `seed ${one.seed}`].filter(Boolean).join(" · ");
  return element("div.run", { role: "row" },
    element("span", { role: "cell" }, box),
    element("span.newest", { role: "cell" }, newest(one, href, about.images)),
    element("span.what", { role: "cell" }, element("a", { href, "data-key": `run ${one.id}` }, one.name),
      element(`span.state.${one.state}`, {}, STATES[one.state]), element("small", {}, words), one.notes && element("small.notes", {}, one.notes)),
    element("span.progress", { role: "cell", "data-label": "updates" }, `${one.updates} of ${one.steps}`,
      element("svg.bar", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, element("rect.ground", { width: 100, height: 6 }), element("rect.fill.c0", { width: share, height: 6 }))),
    element("span", { role: "cell", "data-label": "validation" }, sparkline(one.validation.y, `validation reward of ${one.name}`)),
    element("span.n", { role: "cell", "data-label": "best", title: one.best ? `after update ${one.best.update}` : "" }, number(one.best && one.best.reward)),
    element("span.n", { role: "cell", "data-label": "now" }, number(one.last)),
    element("span.n", { role: "cell", "data-label": "took" }, seconds(one.seconds)),
    element("span.n", { role: "cell", "data-label": "changed" }, ago(one.changed)));
}

// the first sample of the newest validation
function newest(one, href, images) {
  const found = one.thumbnail;
  if (!found) return null;
  const label = `${found.prompt}, ${title(found.update)}`;
  const key = `${one.id} ${found.file}`;
  if (found.file && !images.has(key)) images.set(key, still(one.id, found.file, label));
  return element("a", { href, title: label, tabindex: -1, "aria-hidden": true }, found.file && images.get(key), found.text && element("small", {}, found.text));
}

function still(run, file, label) {
  if (file.endsWith(".wav")) return element("small", {}, "sound");
  if (!file.endsWith(".mp4")) {
    const image = element("img", { alt: label, loading: "lazy", decoding: "async", src: board.address(run, file, 192) });
    sharp(image);
    image.addEventListener("error", () => image.remove());
    return image;
  }
  const video = clip(board.address(run, file), label);
  video.controls = false;
  return video;
}

function compareHash(ids) {
  return `#/compare?${new URLSearchParams(ids.map((id) => ["run", id]))}`;
}

const runHash = (id) => `#/run?run=${encodeURIComponent(id)}`;
