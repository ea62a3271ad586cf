"use strict";
// Images, clips and sounds: by address from the board, or from the data of a page that was written to a file.

const TINY = 64; // pixels up to which an image is shown with sharp pixels

board.address = (run, file, side) => {
  const query = new URLSearchParams({ run, file });
  if (side) query.set("side", side);
  return `media?${query}`;
};

board.media = function (run, file, label, side) {
  if (!file) return element("span.gone", {}, "no image");
  if (board.frozen) return frozenMedia(file, label);
  if (file.endsWith(".mp4")) return clip(board.address(run, file), label);
  if (file.endsWith(".wav")) return element("audio", { controls: true, preload: "none", src: board.address(run, file), "aria-label": label });
  const image = element("img", { loading: "lazy", decoding: "async", alt: label, src: board.address(run, file, side || 384) });
  const beside = file.endsWith(".webp") ? soundBeside(run, file, label) : null;
  sharp(image);
  image.addEventListener("error", () => image.replaceWith(element("span.gone", {}, "no image")));
  enlarges(image, () => board.address(run, file));
  return beside ? element("span.played", {}, image, beside) : image;
};

function soundBeside(run, file, label) {
  const sound = element("audio", { controls: true, preload: "metadata", "aria-label": label,
    src: board.address(run, file.replace(/\.webp$/, ".wav")), hidden: true });
  sound.addEventListener("loadedmetadata", () => { sound.hidden = false; });
  return sound;
}

function sharp(image) {
  const look = () => image.classList.toggle("pixels", Math.max(image.naturalWidth, image.naturalHeight) <= TINY);
  if (image.complete && image.naturalWidth) look(); else image.addEventListener("load", look);
}

function clip(address, label) {
  const video = element("video", { controls: true, loop: true, playsinline: true, preload: "metadata", src: address, "aria-label": label });
  video.muted = true;
  video.addEventListener("loadedmetadata", () => video.classList.toggle("pixels", Math.max(video.videoWidth, video.videoHeight) <= TINY));
  video.addEventListener("error", () => video.replaceWith(element("span.gone", {}, "this clip can't be played here")));
  playsInView(video);
  return video;
}

function playsInView(video) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches || !("IntersectionObserver" in window)) return;
  new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) video.play().catch(() => {}); else video.pause();
    }
  }, { threshold: 0.25 }).observe(video);
}

function frozenMedia(file, label) {
  const found = board.frozen.media[file];
  if (!found) return element("span.gone", {}, "not in this file; it is in the run's folder");
  if (found.video) return clip(found.video, label);
  const [width, height] = found.size;
  const image = element("img", { alt: label, src: found.image, width, height });
  sharp(image);
  enlarges(image, () => found.image);
  return found.sound ? element("span.played", {}, image, element("audio", { controls: true, src: found.sound, "aria-label": label })) : image;
}

function enlarges(image, address) {
  image.tabIndex = 0;
  image.setAttribute("role", "button");
  image.setAttribute("aria-label", `${image.alt}: enlarge`);
  const open = () => {
    const large = element("img", { src: address(), alt: image.alt });
    sharp(large);
    const dialog = element("dialog.large", { "aria-label": image.alt, onclick: () => dialog.close() },
      large, element("p", {}, image.alt.slice(0, 300)), element("button", { type: "button" }, "close"));
    dialog.addEventListener("close", () => { dialog.remove(); image.focus(); });
    document.body.appendChild(dialog);
    dialog.showModal();
  };
  image.addEventListener("click", open);
  image.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
  });
}

// A sample with its scores: what was drawn or answered, and what the rewards said
board.sample = function (run, one, label, options) {
  const settings = options || {};
  const score = scoreLine(one, settings);
  if (one.response !== undefined) {
    return element("div.response", {}, settings.tokens && one.tokens && one.tokens.length
      ? heat(one.tokens, settings.tokens) : element("code", {}, words(one.response, settings.limit)), score);
  }
  if (one.file === undefined) return element("div.response", {}, score);
  return element("figure.sample", {}, board.media(run, one.file, label), element("figcaption", {}, score));
};

function scoreLine(one, settings) {
  const mark = one.exact === true ? element("b.good", { title: "exactly right" }, "✓")
    : one.exact === false ? element("b.bad", { title: "not exactly right" }, "×") : null;
  const parts = Object.entries(one.components || {}).map(([name, value]) => `${name} ${number(value)}`).join("\n");
  return element("p.score", { title: parts }, mark, element("span", {}, one.reward === null ? "missing" : number(one.reward, 2)),
    settings.advantage && one.advantage !== null && one.advantage !== undefined
      ? element(`span.${one.advantage < 0 ? "bad" : "good"}`, { title: "advantage" }, `adv ${signed(one.advantage, 2)}`) : null,
    one.note ? element("span.note", { title: one.note.slice(0, 500) }, one.note) : null);
}

// Tokens on a ground that is the darker, the less likely (or the less certain) the policy found them
function heat(tokens, by) {
  const shown = tokens.slice(0, 4000).map(([text, logprob, entropy]) => {
    const value = by === "entropy" && entropy !== null ? entropy : -logprob;
    const level = Math.min(5, Math.round(value * 1.5));
    const about = `log-prob ${number(logprob)}${entropy === null ? "" : `, entropy ${number(entropy)}`}`;
    return element(`span.h${level}`, { title: about }, text);
  });
  return element("code.heat", {}, shown);
}
