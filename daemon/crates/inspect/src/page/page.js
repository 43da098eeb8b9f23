// Requests the daemon's report twice a second and draws it.

import { HISTORY_SECONDS, between, bytes, clock, earlierThan, percent, rate, round } from "./metrics.js";
import { at, Chart, make, meter, pipeline, say, showSentence } from "./parts.js";

const PERIOD_MS = 500;
const ANSWER_DEADLINE_MS = 3000;
const SHOWN_BAD_SAMPLES = 6;
const MANY_SLOTS = 24;

const axis = { span: HISTORY_SECONDS, from: `${HISTORY_SECONDS / 60} min ago`, to: "now" };
const charts = {
  samples: new Chart(at("samples"), "Samples produced", "a second", { ...axis, write: rate, writeEnd: round }),
  batches: new Chart(at("batches"), "Batches taken", "a second", { ...axis, write: rate, writeEnd: round }),
  waits: new Chart(
    at("waits"), "The trainer waits for data", "of its time", { ...axis, write: percent, least: 0.1, most: 1 }),
};

const kept = { reports: [], points: new Map(), chosen: null };

function remember(report) {
  const last = kept.reports[kept.reports.length - 1];
  if (last && (last.pid !== report.pid || clock(report) < clock(last))) {
    kept.reports = [];
    kept.points.clear();
  }
  // The daemon caches an answer for a moment: this is the same report.
  if (last && last.pid === report.pid && clock(report) === clock(last)) return;
  kept.reports.push(report);
  const now = clock(report);
  const earlier = earlierThan(kept.reports);
  // Older reports are not needed any more.
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
  showSentence(at("sentence"), report.verdict.sentence);
  document.title = `${kept.chosen} · Forebay`;
  at("stalls").hidden = report.stalls.length === 0;
  at("stall-list").replaceChildren(...report.stalls.map((stall) => make("li", "", stall.sentence)));
  at("pipeline").replaceChildren(...pipeline(report.verdict.limit, window));
  at("rings").replaceChildren(...rings(window.sessions));
  at("budgets").replaceChildren(...budgets(report, window));
  at("quiet").replaceChildren(...quiet(report.quiet));
  showBadSamples(window.sessions);
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
      "Reads in flight", `${bytes(report.fetch_in_use_bytes)} of ${bytes(fetch)}`, report.fetch_in_use_bytes / fetch,
      false),
  ];
}

function quiet(items) {
  const missed = items.filter((item) => !item.in_force);
  if (missed.length === 0) return [make("li", "none", `All ${items.length} measures are in effect.`)];
  return missed.map((item) => {
    const remedy = item.remedy ? `; ${item.remedy}` : "";
    return make("li", "missed", make("b", "", item.name), ` ${item.state}${remedy}`);
  });
}

function showBadSamples(sessions) {
  const all = sessions.flatMap((session) => session.substituted);
  const count = sessions.reduce((total, session) => total + session.samples_substituted, 0);
  // A file is bad in every epoch: only its last substitution is shown.
  const latest = new Map(all.map((one) => [one.path, one]));
  const recent = [...latest.values()].sort((one, other) => other.epoch - one.epoch).slice(0, SHOWN_BAD_SAMPLES);
  say(at("bad-count"), count === 0 ? "" : `${count} since the clients attached; the latest`);
  if (recent.length === 0) {
    at("bad").replaceChildren(make("li", "none", "None."));
    return;
  }
  at("bad").replaceChildren(...recent.map((one) => make(
    "li", "",
    make("span", "", one.path),
    make("span", "where", `epoch ${one.epoch}: sample ${one.sample}, replaced by ${one.substitute}`),
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

// A hidden page sends no requests.
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  timer = null;
  if (!document.hidden) poll();
});
poll();
