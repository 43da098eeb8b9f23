// Requests the daemon's report and the new part of its history twice a second, and draws them.

import { Chart } from "./chart.js";
import { History, RANGES, bytes, count, percent, rate, round, span } from "./metrics.js";
import { at, make, meter, pipeline, say, showVerdict, words } from "./parts.js";

const PERIOD_MS = 500;
const HISTORY_PERIOD_MS = 1000;
const ANSWER_DEADLINE_MS = 3000;
const SHOWN_BAD_SAMPLES = 6;
const MANY_SLOTS = 24;
const SLOT_STATES = ["leased", "ready", "filling", "free"];

const charts = {
  samples: new Chart(at("samples"), "Samples produced", { unit: "a second", write: (value) => `${rate(value)} a second`, writeEnd: round }),
  batches: new Chart(at("batches"), "Batches taken", { unit: "a second", write: (value) => `${rate(value)} a second`, writeEnd: round }),
  waited: new Chart(at("waits"), "The trainer waits for data", { unit: "of the time", write: percent, least: 0.1, most: 1 }),
};

const history = new History();
const kept = { report: null, chosen: null, range: RANGES[0] };

// The session of a stream whose verdict is shown, chosen as in the daemon: the one that waits most.
function judged(sessions) {
  const key = (session) => [session.verdict?.limit !== "none" ? 1 : 0, session.window?.wait_share ?? 0];
  return sessions.reduce((most, next) => {
    const [one, other] = [key(most ?? next), key(next)];
    return other[0] > one[0] || (other[0] === one[0] && other[1] > one[1]) ? next : most ?? next;
  }, null);
}

function show() {
  const report = kept.report;
  const names = report.streams.map((stream) => stream.name);
  if (!names.includes(kept.chosen)) kept.chosen = report.sessions[0]?.stream ?? names[0];
  const stream = report.streams.find((one) => one.name === kept.chosen);
  const sessions = report.sessions.filter((one) => one.stream === kept.chosen);
  const session = judged(sessions);
  const verdict = session?.verdict ?? { limit: "none", what: "no trainer is attached", sentence: "" };
  const window = session?.window ?? idle(stream);
  const over = windowWords(window.seconds);
  showStreams(names);
  say(at("process"), `${report.release} · process ${report.pid} · up ${span(report.uptime_seconds)}`);
  document.title = `${kept.chosen} · Forebay`;
  const which = sessions.length > 1 ? `, rank ${session.rank} of ${session.world_size}, which waits most` : "";
  say(at("window"), session ? over + which : "");
  at("verdict").className = `card limit-${["none", "trainer"].includes(verdict.limit) ? verdict.limit : "found"}`;
  showVerdict(at("line"), at("sentence"), verdict);
  at("progress").replaceChildren(...(session?.progress ? progress(session.progress) : []));
  at("stalls").hidden = report.stalls.length === 0;
  at("stall-list").replaceChildren(...report.stalls.map((stall) => make("li", "", ...words(stall.sentence))));
  showCharts(window, over, sessions.length);
  say(at("pipeline-window"), over);
  const reasons = stream.stages.map((stage) => stage.concurrency_reason.replaceAll("`", ""));
  const index = stream.jpeg_index;
  // Images are usually decoded in the first stage after the reads.
  const notes = index?.path ? [null, `JPEG index: ${index.known} of ${index.images} images`] : [];
  at("pipeline").replaceChildren(...pipeline(verdict.limit, window, sessions.length, reasons, notes));
  at("rings").replaceChildren(...rings(sessions));
  at("budgets").replaceChildren(...budgets(report, window, over));
  showDatasets(stream.datasets ?? []);
  showMissed(report.quiet);
  showBadSamples(sessions);
}

// Shows a stream without a trainer.
function idle(stream) {
  const all = [...stream.stages, ...(stream.batch_functions ?? [])];
  const stages = all.map(({ name, concurrency, is_of_batches }) =>
    ({ name, concurrency, is_of_batches, busy: 0, tasks_per_second: 0, mean_seconds: 0, occupancy: null }));
  return { seconds: 0, wait_share: 0, batches_per_second: 0, samples_per_second: 0, cpu_cores: 0, python_cores: 0, stages };
}

function windowWords(seconds) {
  if (seconds === 0) return "";
  return seconds >= 50 && seconds < 70 ? "the last minute" : `the last ${span(seconds)}`;
}

// The headline is for the verdict's window; the current values are next to it.
function showCharts(window, over, trainers) {
  const { range } = kept;
  say(charts.waited.heading, trainers > 1 ? "The trainer that waits most" : "The trainer waits for data");
  const headlines = {
    samples: rate(window.samples_per_second), batches: rate(window.batches_per_second), waited: percent(window.wait_share),
  };
  for (const [value, chart] of Object.entries(charts)) {
    const plotted = history.points(kept.chosen, value, range);
    const last = history.points(kept.chosen, value, RANGES[0]).points.at(-1)?.[1] ?? null;
    const now = value === "waited" ? percent : rate;
    const unit = value === "waited" ? "of the time" : "a second";
    say(chart.unit, trainers > 0 ? `${unit}, ${over}` : "no trainer is attached");
    chart.show(plotted, {
      span: range.seconds,
      from: `${range.name} ago`,
      to: "now",
      when: (seconds) => (plotted.end - seconds < 1 ? "now" : `${span(plotted.end - seconds)} ago`),
      headline: trainers > 0 ? headlines[value] : "–",
      latest: last === null ? "" : `now ${now(last)}`,
    });
  }
}

function choices(element, names, chosen, choose) {
  if (element.childElementCount !== names.length) {
    element.replaceChildren(...names.map((name) => {
      const button = make("button", "", name);
      button.type = "button";
      button.addEventListener("click", () => {
        choose(name);
        show();
      });
      return button;
    }));
  }
  for (const button of element.children) button.setAttribute("aria-pressed", String(button.textContent === chosen));
}

function showStreams(names) {
  choices(at("streams"), names, kept.chosen, (name) => {
    kept.chosen = name;
  });
  choices(at("ranges"), RANGES.map((range) => range.name), kept.range.name, (name) => {
    kept.range = RANGES.find((range) => range.name === name);
  });
}

// The epoch and the run, and their remaining times at the rate of the verdict's window.
function progress(one) {
  const of = one.epochs === null ? "" : ` of ${count(one.epochs)}`;
  const bar = meter(one.samples / Math.max(one.samples_per_epoch, 1));
  const left = (seconds, name) => (seconds > 0 ? [`${span(seconds)} left of the ${name}`] : []);
  const times = [...left(one.epoch_seconds_left, "epoch"), ...(one.epochs === 1 ? [] : left(one.seconds_left, "run"))];
  return [
    make(
      "p", "",
      make("b", "", `Epoch ${count(one.epoch)}${of}`),
      make("span", "", `${count(one.samples)} of ${count(one.samples_per_epoch)} samples`),
      make("span", "", times.join(", ")),
    ),
    bar,
  ];
}

function rings(sessions) {
  if (sessions.length === 0) return [make("p", "none", "No client is attached.")];
  return sessions.map((session) => {
    const slots = SLOT_STATES.map((state) => [state, session[`slots_${state}`]]);
    const cells = slots.flatMap(([state, some]) => Array.from({ length: some }, () => make("i", `slot ${state}`)));
    const row = make("div", cells.length > MANY_SLOTS ? "slots many" : "slots", ...cells);
    row.setAttribute("aria-hidden", "true");
    const legend = slots.map(([state, some]) => make("span", "", make("i", `slot ${state}`), `${some} ${state}`));
    return make(
      "div", "ring",
      make("p", "", `Rank ${session.rank} of ${session.world_size}`),
      row,
      make("p", "legend", ...legend),
    );
  });
}

function budgets(report, window, over) {
  const cores = report.cpu_budget.cores;
  const granted = cores ?? (report.cpu_budget.granted_cores || report.threads);
  const budget = (name, value, share) => make(
    "div", "budget",
    make("p", "", make("span", "", name), make("span", "", value)),
    meter(share, share > 0.95 ? "over" : ""),
  );
  const memory = report.streams.reduce((total, stream) => total + stream.memory_budget_bytes, 0);
  const fetch = report.fetch_budget_bytes;
  const of = (used, all) => `${bytes(used)} of ${bytes(all)}`;
  const isPython = (stream) => stream.batch_functions?.length > 0 || stream.stages.some((stage) => stage.python);
  const workers = report.streams.some(isPython)
    ? [budget("CPU of Python workers, beside", `${over ? window.python_cores.toFixed(2) : "–"} cores`, window.python_cores / granted)]
    : [];
  return [
    budget(`CPU${over && `, ${over}`}`, `${over ? window.cpu_cores.toFixed(2) : "–"} of ${granted.toFixed(2)} cores`, window.cpu_cores / granted),
    ...workers,
    budget("Memory, now", of(report.resident_bytes, memory), report.resident_bytes / memory),
    budget("Read ahead, now", of(report.fetch_in_use_bytes, fetch), report.fetch_in_use_bytes / fetch),
  ];
}

// The rows of each dataset of a mixture.
function showDatasets(datasets) {
  const all = datasets.reduce((total, one) => total + one.rows_published, 0);
  at("datasets-card").hidden = datasets.length === 0;
  at("datasets").replaceChildren(...datasets.map((one) => {
    const share = one.rows_published / Math.max(all, 1);
    return make(
      "div", "budget",
      make("p", "", make("span", "", one.name), make("span", "", `${count(one.rows_published)} rows, ${percent(share)}`)),
      meter(share),
    );
  }));
}

function showMissed(items) {
  const missed = items.filter((item) => !item.in_force);
  at("missed").hidden = missed.length === 0;
  at("quiet").replaceChildren(...missed.map((item) => {
    const remedy = item.remedy ? `; ${item.remedy}` : "";
    return make("li", "missed", make("b", "", item.name), " ", ...words(`${item.state}${remedy}`));
  }));
}

function showBadSamples(sessions) {
  const all = sessions.flatMap((session) => session.substituted);
  const number = sessions.reduce((total, session) => total + session.samples_substituted, 0);
  at("bad-samples").hidden = number === 0;
  // A file is bad in every epoch: only its last substitution is shown.
  const latest = new Map(all.map((one) => [one.path, one]));
  const recent = [...latest.values()].sort((one, other) => other.epoch - one.epoch).slice(0, SHOWN_BAD_SAMPLES);
  say(at("bad-count"), `${count(number)} since the clients attached; the latest`);
  at("bad").replaceChildren(...recent.map((one) => make(
    "li", "",
    make("span", "", one.path),
    make("span", "where", `epoch ${one.epoch}: sample ${one.sample}, replaced by ${one.substitute}`),
    make("span", "reason", one.reason),
  )));
}

let lastAnswer = performance.now();
let lastHistory = -Infinity;
let timer = null;

async function get(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(ANSWER_DEADLINE_MS) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

async function getHistory() {
  if (performance.now() - lastHistory < HISTORY_PERIOD_MS) return;
  // Everything is requested from another daemon at this address.
  if (!history.add(await get(`/history.json?since=${history.since}`))) history.add(await get("/history.json"));
  lastHistory = performance.now();
}

async function poll() {
  timer = null;
  const begun = performance.now();
  const state = at("state");
  try {
    [kept.report] = await Promise.all([get("/stats.json"), getHistory()]);
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
