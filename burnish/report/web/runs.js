"use strict";
// The table of runs, which follows what happens in the folder.

const STATES = { running: "running", finished: "finished", stopped: "stopped" };

board.views.runs = async function (place, kept) {
  const found = await board.get("runs");
  const chosen = kept.chosen || (kept.chosen = new Set());
  for (const id of [...chosen]) if (!found.runs.some((one) => one.id === id)) chosen.delete(id);
  const pictures = new Map(); // kept when the table is drawn again, so that none flickers
  const button = element("button.primary", { type: "button", onclick: () => { location.hash = compareHash([...chosen]); } });
  const count = () => {
    button.textContent = chosen.size > 1 ? `compare ${chosen.size} runs` : "choose runs to compare";
    button.disabled = chosen.size < 2;
  };
  const body = element("div.table-runs", { role: "table", "aria-label": "runs" });
  const search = element("input", { type: "search", placeholder: "find a run", value: kept.find || "", "aria-label": "find a run",
    oninput: () => { kept.find = search.value; draw(found); } });
  const draw = (data) => {
    const wanted = (kept.find || "").toLowerCase();
    const rows = data.runs.filter((one) => `${one.name} ${one.algorithm} ${one.model} ${one.state}`.toLowerCase().includes(wanted));
    fill(body, element("div.run.head", { role: "row" }, ["", "newest", "run", "updates", "validation reward", "best", "now", "took", "last change"].map((text) => element("span", { role: "columnheader" }, text))),
      rows.map((one) => runLine(one, chosen, count, pictures)));
    if (!data.runs.length) append(body, [element("p", {}, "There are no runs in this folder yet. One that is started appears here by itself.")]);
  };
  fill(place, element("header.top", {}, element("h1", {}, "Runs"), element("p.soft", {}, found.folder)),
    element("div.tools", {}, search, button), body);
  count();
  draw(found);
  let last = JSON.stringify(found.runs);
  return async () => {
    const data = await board.get("runs");
    const text = JSON.stringify(data.runs);
    if (text === last) return;
    last = text;
    const focus = document.activeElement && document.activeElement.dataset.key;
    draw(data);
    if (focus) [...body.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focus)?.focus();
  };
};

function runLine(one, chosen, count, pictures) {
  const href = `#/run?run=${encodeURIComponent(one.id)}`;
  const box = element("input", { type: "checkbox", checked: chosen.has(one.id), "aria-label": `compare ${one.name}`, "data-key": `box ${one.id}`,
    onchange: () => { if (box.checked) chosen.add(one.id); else chosen.delete(one.id); count(); } });
  const share = one.steps ? Math.min(100, 100 * one.updates / one.steps) : 0;
  const about = one.error ? "its configuration can't be read" : [one.algorithm, one.model, one.lr ? `lr ${one.lr}` : "", one.seed === null || one.seed === undefined ? "" : `seed ${one.seed}`].filter(Boolean).join(" · ");
  return element("div.run", { role: "row" },
    element("span", { role: "cell" }, box),
    element("span.newest", { role: "cell" }, newest(one, href, pictures)),
    element("span.what", { role: "cell" }, element("a", { href, "data-key": `run ${one.id}` }, one.name),
      element(`span.state.${one.state}`, {}, STATES[one.state]), element("small", {}, about)),
    element("span.progress", { role: "cell", "data-label": "updates" }, `${one.updates} of ${one.steps}`,
      element("svg.bar", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, element("rect.ground", { width: 100, height: 6 }), element("rect.fill.c0", { width: share, height: 6 }))),
    element("span", { role: "cell", "data-label": "validation" }, sparkline(one.validation.y, `validation reward of ${one.name}`)),
    element("span.n", { role: "cell", "data-label": "best", title: one.best ? `after update ${one.best.update}` : "" }, number(one.best && one.best.reward)),
    element("span.n", { role: "cell", "data-label": "now" }, number(one.last)),
    element("span.n", { role: "cell", "data-label": "took" }, seconds(one.seconds)),
    element("span.n", { role: "cell", "data-label": "changed" }, ago(one.changed)));
}

// the first sample of the newest validation
function newest(one, href, pictures) {
  const found = one.thumbnail;
  if (!found) return null;
  const label = `${found.prompt}, ${title(found.update)}`;
  const key = `${one.id} ${found.file}`;
  if (found.file && !pictures.has(key)) pictures.set(key, still(one.id, found.file, label));
  return element("a", { href, title: label, tabindex: -1, "aria-hidden": true }, found.file && pictures.get(key), found.text && element("small", {}, found.text));
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
