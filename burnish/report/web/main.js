"use strict";
// Which view is shown, and following what changes: the address says it, so that it can be kept and sent.

const EVERY = 2000; // milliseconds between looks for something new
const TABS = [["overview", "Overview"], ["curves", "Curves"], ["gallery", "Gallery"], ["prompts", "Prompts"], ["groups", "Groups"], ["time", "System"], ["configuration", "Configuration"]];

board.views.configuration = async function (place, context) {
  fill(place, context.data.config ? element("pre.config", {}, context.data.config.split("\n").map((line) => {
    const [, option, about] = /^(.*? {2}|)(# .*|)$/.exec(line) || [null, line, ""];
    return element("span", {}, option, about && element("i", {}, about), "\n");
  })) : element("p", {}, "There is no config.yaml."));
};

let follow = null, current = 0, shownHash = null;
const kept = {};

function asked() {
  const [, where, query] = /^#\/?([a-z]*)\??(.*)$/.exec(location.hash) || [null, "", ""];
  return { where, query: new URLSearchParams(query) };
}

const stateFrom = (query) => Object.fromEntries([...query].filter(([key]) => !["run", "tab"].includes(key)));

async function route() {
  if (location.hash === shownHash) return;
  shownHash = location.hash;
  const place = document.getElementById("board"), mine = ++current;
  follow = null;
  const { where, query } = asked();
  const box = element("div");
  try {
    let found = null;
    if (where === "run") found = await showRun(box, query.get("run"), query);
    else if (where === "compare") found = await board.views.compare(box, stateFrom(query), query.getAll("run"));
    else found = await board.views.runs(box, Object.assign(kept, stateFrom(query)));
    if (mine !== current) return;
    follow = found || null;
    document.title = where === "run" ? `${query.get("run")} – Burnish` : "Burnish board";
    place.replaceChildren(box);
    window.scrollTo(0, 0);
  } catch (error) {
    if (mine === current) place.replaceChildren(element("p.crumbs", {}, element("a", { href: "#/" }, "all runs")), element("div.warning", {}, element("p", {}, error.message)));
  }
}

async function showRun(place, id, query) {
  let data = await board.get("run", { run: id });
  const cache = {};
  const fresh = (what, values) => cache[what] || (cache[what] = board.get(what, { run: id, ...values }));
  let tab = TABS.some(([name]) => name === query.get("tab")) ? query.get("tab") : "overview";
  const states = {};
  let latest = null;
  const stateOf = (name) => states[name] || (states[name] = {});
  Object.assign(stateOf(tab), stateFrom(query));
  const panel = element("section", { role: "tabpanel", id: "panel", tabindex: -1 }), head = element("header.top");
  const context = {
    id, get data() { return data; }, get state() { return stateOf(tab); }, keys: {},
    curves: () => fresh("curves"), prompts: () => fresh("prompts"),
    go: (name, values) => { Object.assign(stateOf(name), values); open(name); },
    remember: () => board.keep("run", [["run", id], ["tab", tab]], stateOf(tab)),
  };
  const buttons = TABS.map(([name, text]) => element("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", onclick: () => open(name) }, text));
  const bar = element("nav.tabs", { role: "tablist", "aria-label": "views of the run", onkeydown: (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const next = (TABS.findIndex(([name]) => name === tab) + way + TABS.length) % TABS.length;
    open(TABS[next][0]);
    buttons[next].focus();
  } }, buttons);
  // each drawing has a place of its own, so that one that ends late can't overwrite the next
  const draw = async (calmly) => {
    const box = element("div");
    context.keys = {};
    latest = box;
    if (!calmly) panel.replaceChildren(box);
    try {
      await board.views[tab](box, context);
    } catch (error) {
      fill(box, element("div.warning", {}, element("p", {}, error.message)));
    }
    if (calmly && latest === box) panel.replaceChildren(box);
  };
  const open = (name) => {
    tab = name;
    TABS.forEach(([one], i) => {
      buttons[i].setAttribute("aria-selected", String(one === tab));
      buttons[i].tabIndex = one === tab ? 0 : -1;
      if (one === tab) bar.scrollLeft = Math.max(0, buttons[i].offsetLeft - bar.offsetLeft - 24);
    });
    panel.setAttribute("aria-labelledby", `tab-${tab}`);
    context.remember();
    return draw();
  };
  runHead(head, data);
  append(place, [head, bar, panel]);
  place.addEventListener("keydown", (event) => {
    if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (context.keys[event.key]) { event.preventDefault(); context.keys[event.key](); }
  });
  const opened = open(tab);
  if (tab === "overview") opened.catch(() => {}); else await opened;
  requestAnimationFrame(() => { bar.scrollLeft = Math.max(0, bar.querySelector("[aria-selected=true]").offsetLeft - bar.offsetLeft - 24); });
  return async () => {
    const now = await board.get("run", { run: id, stamp: data.stamp });
    const moved = now.stamp !== data.stamp;
    if (!moved && now.row.state === data.row.state) return;
    data = { ...data, ...now };
    runHead(head, data);
    if (!moved) return;
    for (const key of Object.keys(cache)) delete cache[key];
    // what somebody is reading or typing into is not taken from under their hands
    if (!panel.contains(document.activeElement) || ["overview", "curves"].includes(tab) && document.activeElement.tagName !== "INPUT") {
      const height = window.scrollY;
      await draw(true);
      window.scrollTo(0, height);
    }
  };
}

function runHead(head, data) {
  const row = data.row;
  fill(head, board.frozen ? null : element("p.crumbs", {}, element("a", { href: "#/" }, "all runs")),
    element("h1", {}, row.name, board.frozen ? null : element(`span.state.${row.state}`, {}, STATES[row.state])),
    element("p.lead", {}, data.sentence));
}

// What is seen, in the address
board.keep = function (where, fixed, state) {
  if (board.frozen && !/^(file|https?):$/.test(location.protocol)) return; // inside another page
  const query = new URLSearchParams(fixed);
  for (const [key, value] of Object.entries(state)) if (value !== undefined && value !== "" && typeof value !== "object") query.set(key, value);
  const now = asked(); // a view that ends late says nothing about the next one
  if (!board.frozen && (now.where !== where || `${now.query.getAll("run")}` !== `${query.getAll("run")}`)) return;
  shownHash = `#/${where}${`?${query}`.replace(/^\?$/, "")}`;
  history.replaceState(null, "", shownHash);
};

async function look() {
  const mine = current;
  try {
    if (follow && !document.hidden) await follow();
    if (mine === current) board.say("");
  } catch (error) {
    if (mine === current) board.say(`The board does not answer: ${error.message}`);
  }
  setTimeout(look, EVERY);
}

board.begin = async function () {
  const frozen = document.getElementById("frozen");
  if (!frozen) {
    window.addEventListener("hashchange", route);
    await route();
    setTimeout(look, EVERY);
    return;
  }
  board.frozen = JSON.parse(frozen.textContent);
  await showRun(document.getElementById("board"), board.frozen.run.row.id, asked().query);
};

board.begin().catch((error) => board.say(error.message));
