// Elements of the live page and of reports. Strings from a daemon (paths, reasons, names) may come from untrusted files:
// they only ever become text, never markup.

import { percent, rate, time } from "./metrics.js";

const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

// An element with a class and children; strings become text.
export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function draw(tag, className, attributes = {}, title = "") {
  const element = document.createElementNS(SVG, tag);
  element.setAttribute("class", className);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (title) {
    element.append(document.createElementNS(SVG, "title"));
    element.firstChild.textContent = title;
  }
  return element;
}

// The same text is not set again: screen readers read changes aloud.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A bar with text next to it, so screen readers skip the bar.
export function meter(share, className = "") {
  const fill = make("i");
  fill.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  const bar = make("div", `meter ${className}`, fill);
  bar.setAttribute("aria-hidden", "true");
  return bar;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// A daemon's text, with names in backquotes, as nodes.
export function words(text) {
  return text.split("`").map((part, number) => (number % 2 === 1 ? make("code", "", part) : part));
}

// A sentence of the daemon.
export function showSentence(element, sentence) {
  const whole = capital(sentence);
  if (element.textContent !== whole.replaceAll("`", "")) element.replaceChildren(...words(whole));
}

// The limit, its certainty and the remedy, as one short line.
export function showLine(element, what, certainty, advice) {
  const text = [capital(what), certainty ?? "", advice ? `→ ${advice}` : ""].filter((part) => part !== "").join(" ");
  if (element.textContent === text.replaceAll("`", "")) return;
  const parts = [make("span", "", ...words(capital(what)))];
  if (certainty) parts.push(" ", make("span", `certainty ${certainty}`, certainty));
  if (advice) parts.push(" ", make("span", "advice", ...words(`→ ${advice}`)));
  element.replaceChildren(...parts);
}

// A verdict: the line, and below it the explanation without the line's contents.
export function showVerdict(line, sentence, verdict) {
  showLine(line, verdict.what, verdict.certainty, verdict.advice);
  const rest = verdict.sentence.startsWith(`${verdict.what}: `) ? verdict.what.length + 2 : 0;
  showSentence(sentence, verdict.sentence === verdict.what ? "" : verdict.sentence.slice(rest));
}

export function legend(names) {
  return make("p", "legend", ...names.map((name, number) => make("span", "", make("i", `swatch tone-${number % 6}`), name)));
}

// A picture that fills its box, `width` units wide and 100 high, over three grid lines. With a label it is a separate
// image, otherwise the box has the label.
export function plot(label, width = 100) {
  const picture = draw("svg", "", { viewBox: `0 0 ${width} 100`, preserveAspectRatio: "none" });
  if (label) {
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", label);
  } else {
    picture.setAttribute("aria-hidden", "true");
  }
  picture.append(...["0", "50", "100"].map((y) => draw("line", "grid", { x1: 0, x2: width, y1: y, y2: y })));
  return picture;
}

// The stages with the queue after each, and the trainer: `window` is a session's, `reasons` are the reasons for the
// concurrencies, `notes` are further lines by stage. Each bar shows the value of the line below it.
export function pipeline(limit, window, trainers, reasons = [], notes = []) {
  const parts = [];
  window.stages.forEach((stage, number) => {
    const isLimit = limit === stage.name || (limit === "storage" && number === 0);
    const doing = number === 0 ? "reads under way" : stage.python === undefined ? "threads busy" : "workers busy";
    const box = make(
      "li", isLimit ? "stage limit" : "stage",
      make("p", "name", stage.name),
      meter(stage.busy / stage.concurrency),
      make("p", "", `${stage.busy.toFixed(1)} of ${stage.concurrency} ${doing}`),
      make("p", "detail", `${rate(stage.tasks_per_second)} ${stage.is_of_batches ? "batches" : "samples"}/s, ${time(stage.mean_seconds)} each`),
      ...(stage.python ? [make("p", "detail", stage.python)] : []),
      ...(number === 0 && window.requests ? [make("p", "detail", window.requests)] : []),
      ...(number === 0 && window.cache ? [make("p", "detail", `cache: ${window.cache}`)] : []),
      ...(notes[number] ? [make("p", "detail", notes[number])] : []),
    );
    box.title = reasons[number] ?? "";
    const waiting = number === window.stages.length - 1 ? "batches wait here" : "samples wait here";
    const share = stage.occupancy;
    parts.push(box, make(
      "li", "pipe",
      make("b", "", share === null ? "–" : `${percent(share)} of the time`),
      meter(share ?? 0),
      make("span", "", waiting),
    ));
  });
  const works = 1 - window.wait_share;
  parts.push(make(
    "li", limit === "trainer" ? "stage trainer limit" : "stage trainer",
    make("p", "name", trainers > 1 ? `${trainers} trainers` : "trainer"),
    ...(trainers === 0 ? [make("p", "detail", "none is attached")] : [
      meter(works),
      make("p", "", `works ${percent(works)} of the time`),
      make("p", "detail", `waits ${percent(window.wait_share)}, ${rate(window.batches_per_second)} batches/s`),
    ]),
  ));
  return parts;
}
