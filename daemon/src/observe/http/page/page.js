// Asks for the daemon's report twice a second and draws it. What the daemon tells (paths, reasons, names) may come from
// strangers' files: it only ever becomes text, never markup.

import {
  HISTORY_SECONDS, axisEnd, between, bytes, clock, earlierThan, percent, rate, round, time,
} from "./figures.js";

const PERIOD_MS = 500;
const ANSWER_DEADLINE_MS = 3000;
const SHOWN_BAD_SAMPLES = 6;
const MANY_SLOTS = 24;
const SVG = "http://www.w3.org/2000/svg";

const at = (id) => document.getElementById(id);

// An element with a class and children; strings become text.
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function draw(tag, className, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  element.setAttribute("class", className);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function meter(share, isOver = false) {
  const fill = make("i");
  fill.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  return make("div", isOver ? "meter over" : "meter", fill);
}

// A line over the last minutes.
class Chart {
  // `least`: the axis does not end below; `most`: nor above.
  constructor(id, title, unit, { write, writeEnd = write, least = 0, most = Infinity }) {
    Object.assign(this, { write, writeEnd, least, most });
    this.value = make("span");
    this.area = draw("path", "area");
    this.line = draw("path", "line");
    const grid = ["0", "50", "100"].map((y) => draw("line", "grid", { x1: 0, x2: 100, y1: y, y2: y }));
    const picture = draw("svg", "", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
    picture.append(...grid, this.area, this.line);
    picture.setAttribute("aria-label", `${title} over the last ${HISTORY_SECONDS / 60} minutes`);
    this.top = make("span", "top");
    at(id).append(
      make("h2", "", title),
      make("p", "now", this.value, make("small", "", ` ${unit}`)),
      make("div", "plot", picture, this.top),
      make("p", "times", make("span", "", `${HISTORY_SECONDS / 60} min ago`), make("span", "", "now")),
    );
  }

  // Points are [seconds, value or null]; null leaves a gap.
  show(points, now) {
    const values = points.map(([, value]) => value).filter((value) => value !== null);
    const end = Math.min(Math.max(axisEnd(Math.max(...values, 0)), this.least), this.most);
    const place = ([seconds, value]) =>
      [100 * (1 - (now - seconds) / HISTORY_SECONDS), 100 * (1 - value / end)].map((part) => part.toFixed(2));
    const runs = [[]];
    for (const point of points) {
      if (point[1] === null) runs.push([]);
      else runs[runs.length - 1].push(place(point));
    }
    const drawn = runs.filter((run) => run.length > 0);
    const path = (run) => `M${run.map((point) => point.join(" ")).join("L")}`;
    this.line.setAttribute("d", drawn.map(path).join(""));
    this.area.setAttribute(
      "d", drawn.map((run) => `${path(run)}L${run[run.length - 1][0]} 100L${run[0][0]} 100Z`).join(""));
    const last = points[points.length - 1];
    say(this.value, !last || last[1] === null ? "–" : this.write(last[1]));
    say(this.top, this.writeEnd(end));
  }
}

const charts = {
  samples: new Chart("samples", "Samples made", "a second", { write: rate, writeEnd: round }),
  batches: new Chart("batches", "Batches taken", "a second", { write: rate, writeEnd: round }),
  waits: new Chart("waits", "The trainer waits for data", "of its time", { write: percent, least: 0.1, most: 1 }),
};

const kept = { reports: [], points: new Map(), chosen: null };

function remember(report) {
  const last = kept.reports[kept.reports.length - 1];
  if (last && (last.pid !== report.pid || clock(report) < clock(last))) {
    kept.reports = [];
    kept.points.clear();
  }
  // An answer that is still kept on the other side is the same report once more.
  if (last && last.pid === report.pid && clock(report) === clock(last)) return;
  kept.reports.push(report);
  const now = clock(report);
  const earlier = earlierThan(kept.reports);
  // Older ones are compared with no more.
  kept.reports = kept.reports.slice(kept.reports.indexOf(earlier));
  for (const stream of report.streams) {
    const points = kept.points.get(stream.name) ?? [];
    const window = between(earlier, report, stream.name);
    if (window.seconds > 0) {
      points.push([now, window.samplesPerSecond, window.batchesPerSecond, window.waitShare]);
    }
    while (points.length > 0 && now - points[0][0] > HISTORY_SECONDS) points.shift();
    kept.points.set(stream.name, points);
  }
}

function show() {
  const report = kept.reports[kept.reports.length - 1];
  const names = report.streams.map((stream) => stream.name);
  if (!names.includes(kept.chosen)) kept.chosen = report.sessions[0]?.stream ?? names[0];
  const window = between(kept.reports[0], report, kept.chosen);
  const points = kept.points.get(kept.chosen) ?? [];
  const now = clock(report);
  const column = (number) => points.map((point) => [point[0], point[number]]);
  charts.samples.show(column(1), now);
  charts.batches.show(column(2), now);
  charts.waits.show(column(3), now);
  showStreams(names);
  say(at("process"), `${report.release} · process ${report.pid}`);
  showVerdict(report.verdict.sentence);
  document.title = `${kept.chosen} · Forebay`;
  at("stalls").hidden = report.stalls.length === 0;
  at("stall-list").replaceChildren(...report.stalls.map((stall) => make("li", "", stall.sentence)));
  at("pipeline").replaceChildren(...pipeline(report, window));
  at("rings").replaceChildren(...rings(window.sessions));
  at("budgets").replaceChildren(...budgets(report, window));
  at("quiet").replaceChildren(...quiet(report.quiet));
  showBadSamples(window.sessions);
}

// Names stand between backquotes.
function showVerdict(text) {
  const whole = `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
  const parts = whole.split("`").map((part, number) => (number % 2 === 1 ? make("code", "", part) : part));
  // An unchanged sentence is left alone: screen readers read what changes.
  if (at("sentence").textContent !== whole.replaceAll("`", "")) at("sentence").replaceChildren(...parts);
}

function showStreams(names) {
  if (at("streams").childElementCount !== names.length) {
    at("streams").replaceChildren(...names.map((name) => {
      const button = make("button", "", name);
      button.type = "button";
      button.addEventListener("click", () => {
        kept.chosen = name;
        show();
      });
      return button;
    }));
  }
  for (const button of at("streams").children) {
    button.setAttribute("aria-pressed", String(button.textContent === kept.chosen));
  }
}

function pipeline(report, window) {
  const limit = report.verdict.limit;
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
    make("p", "", waits === null ? "none is attached" : `waits ${percent(waits)} of the time`),
    make("p", "detail", `${rate(window.batchesPerSecond)} batches a second`),
  ));
  return parts;
}

function pipe(queue, isRing) {
  const name = isRing ? "ring" : "queue";
  const filled = queue ? queue.occupancy : 0;
  const text = queue ? percent(filled) : "–";
  return make("li", "pipe", make("b", "", text), meter(filled), make("span", "", name));
}

function rings(sessions) {
  if (sessions.length === 0) return [make("p", "none", "No client is attached.")];
  return sessions.map((session) => {
    const states = ["leased", "ready", "filling", "free"];
    const cells = states.flatMap((state) =>
      Array.from({ length: session[`slots_${state}`] }, () => make("i", `slot ${state}`)));
    const slots = make("div", cells.length > MANY_SLOTS ? "slots many" : "slots", ...cells);
    slots.setAttribute("role", "img");
    slots.setAttribute("aria-label", states.map((state) => `${session[`slots_${state}`]} ${state}`).join(", "));
    const position = `epoch ${session.position.epoch}, sample ${session.position.samples.toLocaleString("en")}`;
    return make(
      "div", "ring",
      make("p", "", `Rank ${session.rank} of ${session.world_size} `, make("span", "detail", `at ${position}`)),
      slots,
    );
  });
}

function budgets(report, window) {
  const cores = report.cpu_budget.cores;
  const whole = cores ?? report.threads;
  const budget = (name, value, share, isOver) =>
    make("div", "budget", make("p", "", make("span", "", name), make("span", "", value)), meter(share, isOver));
  const cpu = `${window.cpuCores.toFixed(2)} ${cores === null ? "cores, no limit" : `of ${cores.toFixed(2)} cores`}`;
  const memory = window.memoryBudgetBytes;
  const fetch = report.fetch_budget_bytes;
  return [
    budget("CPU", cpu, window.cpuCores / whole, cores !== null && window.cpuCores > 0.95 * cores),
    budget(
      "Memory", `${bytes(report.resident_bytes)} of ${bytes(memory)}`, report.resident_bytes / memory,
      report.resident_bytes > memory),
    budget(
      "Reads under way", `${bytes(report.fetch_in_use_bytes)} of ${bytes(fetch)}`, report.fetch_in_use_bytes / fetch,
      false),
  ];
}

function quiet(items) {
  const missed = items.filter((item) => !item.in_force);
  if (missed.length === 0) return [make("li", "none", `All ${items.length} means are in force.`)];
  return missed.map((item) => {
    const remedy = item.remedy ? `; ${item.remedy}` : "";
    return make("li", "missed", make("b", "", item.name), ` ${item.state}${remedy}`);
  });
}

function showBadSamples(sessions) {
  const all = sessions.flatMap((session) => session.substituted);
  const count = sessions.reduce((total, session) => total + session.samples_substituted, 0);
  // The same file is bad in every epoch: it is shown once, as it was last.
  const latest = new Map(all.map((one) => [one.path, one]));
  const recent = [...latest.values()].sort((one, other) => other.epoch - one.epoch).slice(0, SHOWN_BAD_SAMPLES);
  say(at("bad-count"), count === 0 ? "" : `${count} since the clients attached; the last ones`);
  if (recent.length === 0) {
    at("bad").replaceChildren(make("li", "none", "None."));
    return;
  }
  at("bad").replaceChildren(...recent.map((one) => make(
    "li", "",
    make("span", "", one.path),
    make("span", "where", `epoch ${one.epoch}: sample ${one.sample}, in its place ${one.substitute}`),
    make("span", "reason", one.reason),
  )));
}

let lastAnswer = performance.now();
let timer = null;

async function poll() {
  timer = null;
  const begun = performance.now();
  const state = at("state");
  try {
    const answer = await fetch("/stats.json", { signal: AbortSignal.timeout(ANSWER_DEADLINE_MS) });
    if (!answer.ok) throw new Error(await answer.text());
    remember(await answer.json());
    show();
    lastAnswer = performance.now();
    state.className = "live";
    say(state, "live");
  } catch {
    const seconds = Math.round((performance.now() - lastAnswer) / 1000);
    state.className = "lost";
    say(state, `no answer for ${seconds} s`);
  }
  if (!document.hidden && timer === null) {
    timer = setTimeout(poll, Math.max(PERIOD_MS - (performance.now() - begun), 50));
  }
}

// Nobody looks: nothing is asked.
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  timer = null;
  if (!document.hidden) poll();
});
poll();
