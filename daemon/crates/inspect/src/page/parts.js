// Elements of the live page and of reports. Strings from a daemon (paths, reasons, names) may come from untrusted files:
// they only ever become text, never markup.

import { axisEnd, percent, rate, time } from "./metrics.js";

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

// The same text is not set again: screen readers read what changes.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function meter(share, isOver = false) {
  const fill = make("i");
  fill.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  return make("div", isOver ? "meter over" : "meter", fill);
}

// Names stand between backquotes.
export function showSentence(element, sentence) {
  const whole = sentence.charAt(0).toUpperCase() + sentence.slice(1);
  const parts = whole.split("`").map((part, number) => (number % 2 === 1 ? make("code", "", part) : part));
  if (element.textContent !== whole.replaceAll("`", "")) element.replaceChildren(...parts);
}

export function legend(names) {
  return make("p", "legend", ...names.map((name, number) => make("span", "", make("i", `swatch tone-${number % 6}`), name)));
}

// A picture that fills its box, `width` units wide and 100 high, over three grid lines.
export function plot(label, width = 100) {
  const picture = draw("svg", "", { viewBox: `0 0 ${width} 100`, preserveAspectRatio: "none", role: "img" });
  picture.setAttribute("aria-label", label);
  picture.append(...["0", "50", "100"].map((y) => draw("line", "grid", { x1: 0, x2: width, y1: y, y2: y })));
  return picture;
}

// One line, or several, over a span of seconds.
export class Chart {
  // `from` and `to` are written below the ends of the axis, which does not end below `least` nor above `most`. `names` are
  // those of several lines. `headline` replaces the last value.
  constructor(card, title, unit, { span, from, to, write, writeEnd = write, least = 0, most = Infinity, names, headline }) {
    Object.assign(this, { span, write, writeEnd, least, most, headline });
    this.value = make("span");
    this.area = draw("path", "area");
    this.lines = (names ?? [title]).map((_, number) => draw("path", `line tone-${number % 6}`));
    const picture = plot(`${title} from ${from} to ${to}`);
    picture.append(this.area, ...this.lines);
    this.top = make("span", "top");
    card.append(
      make("h2", "", title),
      make("p", "now", this.value, make("small", "", ` ${unit}`)),
      make("div", "plot", picture, this.top),
      make("p", "times", make("span", "", from), make("span", "", to)),
    );
    if (names) card.append(legend(names));
  }

  // Points are [seconds, value or null, …], a value for each line; null leaves a gap.
  show(points, now) {
    const values = points.flatMap((point) => point.slice(1)).filter((value) => value !== null);
    const end = Math.min(Math.max(axisEnd(Math.max(...values, 0)), this.least), this.most);
    const path = (run) => `M${run.map((point) => point.join(" ")).join("L")}`;
    this.lines.forEach((line, number) => {
      const runs = [[]];
      for (const point of points) {
        const [seconds, value] = [point[0], point[number + 1]];
        const place = [100 * (1 - (now - seconds) / this.span), 100 * (1 - value / end)];
        if (value === null) runs.push([]);
        else runs[runs.length - 1].push(place.map((part) => part.toFixed(2)));
      }
      const drawn = runs.filter((run) => run.length > 0);
      line.setAttribute("d", drawn.map(path).join(""));
      const area = (run) => `${path(run)}L${run[run.length - 1][0]} 100L${run[0][0]} 100Z`;
      if (this.lines.length === 1) this.area.setAttribute("d", drawn.map(area).join(""));
    });
    const last = points[points.length - 1]?.[1] ?? null;
    say(this.value, this.headline ?? (last === null ? "–" : this.write(last)));
    say(this.top, this.writeEnd(end));
  }
}

// The stages with the queue after each, and the trainer: `window` is what `between` in metrics.js gives.
export function pipeline(limit, window) {
  const parts = [];
  window.stages.forEach((stage, number) => {
    const isLimit = limit === stage.name || (limit === "storage" && number === 0);
    const unit = number === 0 ? "reads" : "threads";
    const box = make(
      "li", isLimit ? "stage limit" : "stage",
      make("p", "name", stage.name),
      meter(stage.busy / stage.concurrency),
      make("p", "", `${stage.busy.toFixed(1)} of ${stage.concurrency} ${unit} busy`),
      make("p", "detail", `${rate(stage.rate)} a second, ${time(stage.meanSeconds)} each`),
    );
    box.title = stage.reason;
    parts.push(box, pipe(stage.queue, number === window.stages.length - 1));
  });
  const waits = window.waitShare;
  const count = window.sessions.length;
  parts.push(make(
    "li", limit === "trainer" ? "stage trainer limit" : "stage trainer",
    make("p", "name", count > 1 ? `${count} trainers` : "trainer"),
    meter(waits === null ? 0 : 1 - waits),
    make("p", "", waits === null ? "no trainer attached" : `waits ${percent(waits)} of the time`),
    make("p", "detail", `${rate(window.batchesPerSecond)} batches a second`),
  ));
  return parts;
}

function pipe(queue, isRing) {
  const text = queue ? percent(queue.occupancy) : "–";
  return make("li", "pipe", make("b", "", text), meter(queue?.occupancy ?? 0), make("span", "", isRing ? "ring" : "queue"));
}
