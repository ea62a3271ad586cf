"use strict";
// Every prompt with how it went, sorted; only the rows in view are in the page.

const ROW = 62; // pixels of a row

const SORTS = [
  ["order", "in order", "as in the data"],
  ["improved", "most improved", "largest gain of the mean reward from the first validation to the last"],
  ["worst", "worst", "lowest mean reward now"],
  ["lost", "got worse", "largest loss of the mean reward"],
  ["never", "never learned", "no later validation has a higher mean than the first one, and there was room"],
  ["zero", "zero variance", "all samples had the same reward, most often first: nothing to learn from"],
];

function sorted(prompts, by) {
  const rows = [...prompts];
  const order = (value, way) => (a, b) => way * ((value(a) ?? Infinity * way) - (value(b) ?? Infinity * way)) || a.index - b.index;
  if (by === "improved") return rows.filter((one) => one.change !== null).sort(order((one) => one.change, -1));
  if (by === "lost") return rows.filter((one) => one.change < 0).sort(order((one) => one.change, 1));
  if (by === "worst") return rows.sort(order((one) => one.last, 1));
  if (by === "never") return rows.filter((one) => one.never).sort(order((one) => one.last, 1));
  if (by === "zero") return rows.filter((one) => one.zero > 0).sort(order((one) => one.zero, -1));
  return rows;
}

board.views.prompts = async function (place, context) {
  const state = context.state;
  const of = state.of || "validation";
  const found = of === "training" ? await board.get("prompts", { run: context.id, of }) : await context.prompts();
  const list = element("div.rows", { tabindex: 0, role: "list", "aria-label": "prompts" });
  const count = element("span.soft");
  const search = element("input", { type: "search", placeholder: "find a prompt", value: state.find || "", "aria-label": "find a prompt",
    oninput: () => { state.find = search.value; draw(); } });
  const draw = () => {
    const wanted = (state.find || "").toLowerCase();
    const rows = sorted(found.prompts, state.sort || "order").filter((one) => (one.prompt || "").toLowerCase().includes(wanted));
    count.textContent = plural(rows.length, "prompt");
    virtual(list, rows, (one) => promptRow(one, of, found, context));
    context.remember();
  };
  fill(place,
    element("div.tools", {}, chips("prompts of", [["validation", "validation"], ["training", "training"]], of,
      (value) => { state.of = value; board.views.prompts(place, context); }), search, count),
    chips("sort prompts by", SORTS, state.sort || "order", (value) => { state.sort = value; list.scrollTop = 0; draw(); }),
    element("div.row.head", { "aria-hidden": "true" }, element("span", {}, "prompt"), element("span", {}, "mean reward"), element("span.n", {}, "first"),
      element("span.n", {}, "last"), element("span.n", {}, "change"), element("span.n", {}, "all alike")),
    found.prompts.length ? list : element("p.soft", {}, of === "training"
      ? "No groups of training samples are recorded yet." : "There is no validation yet."));
  if (found.prompts.length) draw();
};

function promptRow(one, of, found, context) {
  const open = of === "training" ? () => context.go("groups", { update: one.update })
    : found.kept.includes(one.index) ? () => context.go("gallery", { prompt: one.index }) : null;
  const kind = one.change > 0 ? "good" : one.change < 0 ? "bad" : "";
  const about = [one.source !== "default" && one.source, one.answer && `answer ${one.answer}`, one.never && "never learned",
    of === "training" && `in ${plural(one.seen, "update")}`].filter(Boolean).join(" · ");
  return element("div.row", { role: "listitem" },
    element("span.what", {}, open ? element("button.link", { type: "button", onclick: open }, one.prompt || `prompt ${one.index + 1}`)
      : element("span", {}, one.prompt || `prompt ${one.index + 1}`), about && element("small", {}, about)),
    sparkline(one.spark),
    element("span.n", { "data-label": "first" }, number(one.first)), element("span.n", { "data-label": "last" }, number(one.last)),
    element(kind ? `span.n.${kind}` : "span.n", { "data-label": "change" }, signed(one.change)),
    element("span.n", { "data-label": "all alike" }, one.zero === null ? "–" : `${Math.round(100 * one.zero)} %`));
}

// A list of any length of which only what can be seen is made
function virtual(list, rows, make) {
  const inner = element("div.inner");
  inner.style.height = `${rows.length * ROW}px`;
  fill(list, inner);
  const made = new Map();
  let from = -1, to = -1;
  const draw = () => {
    const start = Math.max(0, Math.floor(list.scrollTop / ROW) - 6);
    const end = Math.min(rows.length, Math.ceil((list.scrollTop + (list.clientHeight || 600)) / ROW) + 6);
    if (start === from && end === to) return;
    [from, to] = [start, end];
    for (const [at, row] of made) {
      if (at >= start && at < end) continue;
      row.remove();
      made.delete(at);
    }
    for (let at = start; at < end; at++) {
      if (made.has(at)) continue;
      const row = make(rows[at]);
      row.style.transform = `translateY(${at * ROW}px)`;
      made.set(at, row);
      // in the order in which they are read
      inner.insertBefore(row, at > start ? made.get(at - 1).nextSibling : inner.firstChild);
    }
  };
  let asked = false;
  list.onscroll = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };
  draw();
}
