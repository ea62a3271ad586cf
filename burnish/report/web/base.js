"use strict";
// Elements, numbers and data. Text only ever becomes a text node: what runs and their files say is never markup.

const board = { views: {} };

const SVG = "http://www.w3.org/2000/svg";

function element(tag, options, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = ["svg", "path", "rect", "circle", "g", "text", "line"].includes(name)
    ? document.createElementNS(SVG, name) : document.createElement(name);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(options || {})) {
    if (value === undefined || value === null || value === false && !key.startsWith("aria-")) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true && !key.startsWith("aria-")) made.setAttribute(key, "");
    else made.setAttribute(key, String(value));
  }
  append(made, children);
  return made;
}

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
}

function fill(parent, ...children) {
  parent.replaceChildren();
  return append(parent, children);
}

// ---- numbers

function number(value, digits) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  let text;
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) text = value.toExponential(1).replace("e+", "e");
  else if (digits !== undefined) text = value.toFixed(digits);
  else text = size >= 100 ? value.toFixed(1) : value.toFixed(3);
  return text.replaceAll("-", "−");
}

// one value in words: a count stays one
function exact(value) {
  return Number.isInteger(value) ? String(value).replace("-", "−") : number(value);
}

function signed(value, digits) {
  if (value === null || value === undefined) return "–";
  return (value > 0 ? "+" : "") + number(value, digits);
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 100) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  const minutes = Math.round(value / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function ago(changed) {
  if (!changed) return "–";
  const past = Math.max(0, Date.now() / 1000 - changed);
  if (past < 60) return "now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return new Date(changed * 1000).toISOString().slice(0, 10);
}

// Mean and standard deviation, as a sweep's table says it
function spread(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const mean = known.reduce((sum, value) => sum + value, 0) / (known.length || 1);
  const squares = known.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { n: known.length, mean: known.length ? mean : null, std: known.length > 1 ? Math.sqrt(squares / (known.length - 1)) : null };
}

function plusMinus(values) {
  const { mean, std } = spread(values);
  return std === null ? number(mean) : `${number(mean)} ± ${number(std)}`;
}

// Rows as a file for spreadsheets, which take no text of others for a formula
function csv(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    const text = typeof value === "number" ? String(value) : String(value).replace(/^[=+@\-\t\r]/, "'$&");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

function plural(count, one, many) {
  return `${count} ${count === 1 ? one : many || one + "s"}`;
}

// ---- data: from the server, or from inside a page that was written to a file

board.frozen = null;

board.get = async function (what, values) {
  if (board.frozen) return board.frozenAnswer(what, values || {});
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values || {})) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined) query.append(key, one);
    }
  }
  const reply = await fetch(`api/${what}?${query}`, { credentials: "omit", cache: "no-store" });
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error || `the board answered ${reply.status}`);
  return found;
};

board.frozenAnswer = function (what, values) {
  const data = board.frozen;
  if (what === "walk") return data.walks[values.prompt] || { updates: [], shown: [] };
  if (what === "prompts") return values.of === "training" ? data.trained : data.prompts;
  if (what === "groups") return data.groups[String(values.update ?? data.groups.last)] || { updates: [], groups: [] };
  if (what === "time") return data.time;
  if (what === "curves") return data.curves;
  if (what === "run") return data.run;
  throw new Error(`${what} is not in this file`);
};

// ---- small things that several views use

function details(title, ...children) {
  return element("details", {}, element("summary", {}, title), ...children);
}

function choice(label, options, chosen, onchange) {
  const select = element("select", { onchange: () => onchange(select.value) },
    options.map(([value, text]) => element("option", { value, selected: String(value) === String(chosen) }, text)));
  return element("label.choice", {}, element("span", {}, label), select);
}

function toggle(label, on, onchange) {
  const box = element("input", { type: "checkbox", checked: on, onchange: () => onchange(box.checked) });
  return element("label.toggle", {}, box, label);
}

// A button that saves a table as a file; nothing is sent anywhere
function download(name, rows) {
  return element("button", { type: "button", onclick: () => {
    const href = URL.createObjectURL(new Blob([csv(rows())], { type: "text/csv" }));
    element("a", { href, download: `${name.replace(/[^\w.-]+/g, "_")}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 1000);
  } }, "CSV");
}

function chips(label, options, chosen, onchange) {
  const buttons = options.map(([value, text, title]) => element("button.chip", {
    type: "button", title, "aria-pressed": value === chosen,
    onclick: () => {
      for (const one of buttons) one.setAttribute("aria-pressed", String(one === buttons[options.findIndex((o) => o[0] === value)]));
      onchange(value);
    },
  }, text));
  return element("div.chips", { role: "group", "aria-label": label }, buttons);
}

// a long text is folded; all of it is there, and none of it is markup
function words(text, limit) {
  const most = limit || 1200;
  if (text === null || text === undefined) return null;
  if (text.length <= most) return element("span.words", {}, text);
  const shown = element("span.words", {}, `${text.slice(0, most)}…`);
  const more = element("button.more", {
    type: "button",
    onclick: () => { shown.textContent = text; shown.classList.add("tall"); more.remove(); },
  }, `all ${text.length.toLocaleString("en")} characters`);
  return element("span", {}, shown, more);
}

board.say = function (text) {
  let place = document.getElementById("said");
  if (!place) {
    place = element("div", { id: "said", role: "status", "aria-live": "polite" });
    document.body.appendChild(place);
  }
  place.textContent = text || "";
};

// draws what comes near the visible part of the page, once
board.lazily = function (place, draw) {
  if (!("IntersectionObserver" in window)) { draw(); return; }
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) { watcher.disconnect(); draw(); }
  }, { rootMargin: "400px" });
  watcher.observe(place);
};
