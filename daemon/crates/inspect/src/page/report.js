// Draws a report from the JSON in its own file. It loads nothing.

import { axisEnd, bytes, percent, rate, round, stageBetween, time } from "./metrics.js";
import { at, Chart, draw, legend, make, pipeline, plot, showSentence } from "./parts.js";

const BARS_PER_DECADE = 12;

const data = JSON.parse(at("data").textContent);
const add = (...elements) => at("report").append(...elements);
const grid = (...cards) => make("div", "cards", ...cards);

function card(heading, note, ...children) {
  return make("section", "card", make("h2", "", heading, make("span", "aside", note)), ...children);
}

function table(className, rows, header = []) {
  const row = (tag, cells) => make("tr", "", ...cells.map((cell) => make(tag, "", cell)));
  const head = make("thead", "", ...(header.length > 0 ? [row("th", header)] : []));
  return make("div", "wide", make("table", className, head, make("tbody", "", ...rows.map((cells) => row("td", cells)))));
}

const tiles = (values) => make("div", "tiles", ...values.map(([value, name]) =>
  make("p", "card", make("b", "", value), make("span", "", name))));

// Columns over a width of `heights.length`; each has a value, a class and a title.
function columns(label, heights, end) {
  const picture = plot(label, heights.length);
  heights.forEach(([value, className, title], x) => {
    const height = Math.max(100 * value / end, value > 0 ? 1 : 0);
    picture.append(draw("rect", className, { x: x + 0.06, y: 100 - height, width: 0.88, height }, title));
  });
  return picture;
}

// The whole decades that hold all times of tasks.
function decades(stages) {
  const times = stages.flatMap((stage) => stage.times.map(([seconds]) => seconds)).filter((seconds) => seconds > 0);
  if (times.length === 0) return [-6, 0];
  const first = Math.floor(Math.log10(Math.min(...times)));
  return [first, Math.max(Math.ceil(Math.log10(Math.max(...times))), first + 1)];
}

// How many of a stage's tasks took how long, over a logarithmic axis.
function histogram(stage, number, [first, last]) {
  const count = (last - first) * BARS_PER_DECADE;
  const place = (seconds) => Math.min(Math.max((Math.log10(Math.max(seconds, 1e-12)) - first) * BARS_PER_DECADE, 0), count);
  const tasks = Array(count).fill(0);
  for (const [seconds, some] of stage.times) tasks[Math.min(Math.floor(place(seconds)), count - 1)] += some;
  const total = Math.max(tasks.reduce((one, other) => one + other, 0), 1);
  const end = axisEnd(Math.max(...tasks) / total);
  const bars = tasks.map((some, bar) =>
    [some / total, `bar tone-${number % 6}`, `${some} tasks up to ${time(10 ** (first + (bar + 1) / BARS_PER_DECADE))}`]);
  const picture = columns(`Time of a task of ${stage.name}`, bars, end);
  const marks = [["mean", stage.ave_time], ["p99", stage.p99_time]].map(([name, seconds]) => {
    const x = place(seconds);
    picture.append(draw("line", "mark", { x1: x, x2: x, y1: 0, y2: 100 }));
    const mark = make("span", x > 0.85 * count ? "mark left" : "mark", name);
    mark.style.left = `${100 * x / count}%`;
    return mark;
  });
  const axis = Array.from({ length: last - first + 1 }, (_, step) => make("span", "", time(10 ** (first + step))));
  return make(
    "section", "card chart",
    make("h2", "", `Time of a task of ${stage.name}`),
    make("p", "now", time(stage.ave_time), make("small", "", ` mean, p99 ${time(stage.p99_time)}`)),
    make("div", "plot", picture, make("span", "top", `${percent(end)} of tasks`), ...marks),
    make("p", "times", ...axis),
  );
}

function stageTable(stages) {
  const header = [
    "stage", "concurrency", "tasks", "failed", "mean", "p90", "p99", "put wait", "get wait", "occupancy"];
  const rows = stages.map((stage) => [
    stage.name, stage.concurrency, stage.num_tasks, stage.num_failures, time(stage.ave_time), time(stage.p90_time),
    time(stage.p99_time), ...(stage.queue
      ? [time(stage.queue.ave_put_time), time(stage.queue.ave_get_time), percent(stage.queue.occupancy_rate)]
      : ["", "", ""]),
  ].map(String));
  return card("Stages", "", table("stages", rows, header));
}

function charts(run, waitShare) {
  const last = data.points[data.points.length - 1];
  const span = last?.seconds ?? 1;
  const axis = { span, from: "0 s", to: time(span) };
  const chart = (title, unit, options, values) => {
    const element = make("section", "card chart");
    const points = data.points.map((point) => [point.seconds, ...values(point)]);
    new Chart(element, title, unit, { ...axis, ...options }).show(points, span);
    return element;
  };
  const mean = (value) => data.points.reduce((total, point) => total + value(point), 0) / Math.max(data.points.length, 1);
  const queued = run.stages.map((stage, number) => [stage, number]).filter(([stage]) => stage.queue);
  const names = queued.map(([stage, number]) => (number + 1 === run.stages.length ? "ring" : `after ${stage.name}`));
  return grid(
    chart("Throughput", "samples a second", { writeEnd: round, headline: rate(run.samples_per_second) }, (point) => [point.samples]),
    chart("The trainer waits for data", "of its time", { write: percent, most: 1, headline: percent(waitShare) },
      (point) => [point.waited_seconds]),
    chart("Occupancy of the queues", "share of time in which each is not empty", { write: percent, least: 1, most: 1, names, headline: "" },
      (point) => queued.map(([, number]) => point.occupied_seconds[number] ?? null)),
    chart("CPU time of the daemon", "cores", { writeEnd: round, headline: rate(mean((point) => point.cpu_seconds)) },
      (point) => [point.cpu_seconds]),
  );
}

function showBench() {
  const run = data.run;
  const { seconds, wait_seconds: waited } = data.session ?? { seconds: run.seconds, wait_seconds: 0 };
  const waitShare = seconds > 0 ? Math.min(Math.max(waited / seconds, 0), 1) : 0;
  const window = {
    stages: run.stages.map((stage) => stageBetween(stage, undefined, seconds)),
    sessions: [data.session],
    waitShare,
    batchesPerSecond: run.seconds > 0 ? run.batches / run.seconds : 0,
  };
  const picture = make("ol", "", ...pipeline(run.verdict.limit, window));
  picture.id = "pipeline";
  const range = decades(run.stages);
  add(
    tiles([
      [rate(run.samples_per_second), "samples a second"],
      [percent(waitShare), "of the time the trainer waited"],
      [time(run.wait_seconds.p99), `wait for a batch, p99 (p50 ${time(run.wait_seconds.p50)})`],
      [rate(run.cpu_seconds_per_1000_samples), "CPU seconds per 1,000 samples"],
      [time(run.time_to_first_batch_seconds), "to the first batch"],
      [bytes(run.peak_memory_bytes), "peak memory, ring included"],
    ]),
    card("Pipeline", "the fill of a connector is the share of time in which its queue is not empty", picture),
    charts(run, waitShare),
    grid(...run.stages.map((stage, number) => histogram(stage, number, range))),
    stageTable(run.stages),
  );
  data.facts.unshift(["run", `${run.samples} samples in ${run.batches} batches, ${run.seconds.toFixed(2)} s`]);
  if (run.digest) data.facts.unshift(["digest", run.digest]);
  return ["Bottleneck", run.verdict.sentence];
}

function showHeadspace() {
  const found = data.run;
  const parts = [
    ["the trainer works", found.step_seconds_without_loading],
    ["waits for data", found.wait_seconds],
    ["is slowed down by loading", found.disturbance_seconds],
  ];
  const most = Math.max(found.step_seconds, parts.reduce((total, [, seconds]) => total + seconds, 0), 1e-12);
  const bar = (name, seconds, shown) => make(
    "div", "step",
    make("p", "", make("span", "", name), make("b", "", time(seconds))),
    make("div", "stack", ...shown.map(([part, value], number) => {
      const piece = make("i", `tone-${number % 6}`);
      piece.style.width = `${100 * Math.max(value, 0) / most}%`;
      piece.title = `${part}: ${time(value)}`;
      return piece;
    })),
  );
  const phases = ["before", "during", "after"];
  const blocks = data.blocks.map(([phase, seconds]) =>
    [seconds, `bar tone-${phases.indexOf(phase)}`, `${phase} the replay: ${time(seconds)}`]);
  const end = axisEnd(Math.max(...data.blocks.map(([, seconds]) => seconds), 0));
  add(grid(
    card("A step", "",
      bar("with data", found.step_seconds, parts),
      bar("if data were free", found.step_seconds_without_loading, parts.slice(0, 1)),
      legend(parts.map(([name, seconds]) => `${name}: ${time(seconds)}`))),
    card("Step times", "mean of each block of steps, in order",
      make("div", "plot", columns("Step times", blocks, end), make("span", "top", time(end))),
      ...(found.replayed ? [legend(phases.map((phase) => `${phase} the replay`))] : [])),
  ));
  const hours = (value) => value.toFixed(value < 1 ? 2 : 1);
  const exact = (share) => `${(share * 100).toFixed(1)} %`;
  const steps = found.steps_measured;
  data.facts.unshift(
    ["headspace", `${exact(found.headspace)} (± ${exact(found.uncertainty)})`],
    ["steps", `${steps.with_data} with data, ${steps.replayed} replayed`],
    ["saved per epoch", `${hours(found.hours_saved_per_epoch)} hours`],
    ...(found.hours_saved === null ? [] :
      [["saved", `${hours(found.hours_saved)} of the remaining ${hours(found.hours_remaining)} hours`]]),
    ...found.notes.map((note) => ["note", note]),
  );
  return ["Headspace", found.sentence];
}

const [heading, sentence] = data.kind === "bench" ? showBench() : showHeadspace();
document.title = data.title;
at("title").textContent = data.title;
at("process").textContent = data.release;
at("heading").textContent = heading;
showSentence(at("sentence"), sentence);
if (data.config) {
  const note = make("span", "aside", "resolved, as forebay check prints it");
  add(make("details", "card", make("summary", "", make("h2", "", "Configuration", note)), make("pre", "", data.config.join("\n"))));
}
add(card("Machine and run", "", table("facts", data.facts)));
