// Draws a report from the JSON in its own file. It loads nothing.

import { Chart } from "./chart.js";
import { axisEnd, bytes, count, percent, rate, round, span, time } from "./metrics.js";
import { showSamples } from "./samples.js";
import { at, draw, legend, make, pipeline, plot, showLine, showSentence, showVerdict, words } from "./parts.js";

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

// The decades that contain all times of tasks.
function decades(stages) {
  const times = stages.flatMap((stage) => stage.times.map(([seconds]) => seconds)).filter((seconds) => seconds > 0);
  if (times.length === 0) return [-6, 0];
  const first = Math.floor(Math.log10(Math.min(...times)));
  return [first, Math.max(Math.ceil(Math.log10(Math.max(...times))), first + 1)];
}

// The distribution of a stage's task times over a logarithmic axis.
function histogram(stage, number, [first, last]) {
  const bins = (last - first) * BARS_PER_DECADE;
  const place = (seconds) => Math.min(Math.max((Math.log10(Math.max(seconds, 1e-12)) - first) * BARS_PER_DECADE, 0), bins);
  const tasks = Array(bins).fill(0);
  for (const [seconds, some] of stage.times) tasks[Math.min(Math.floor(place(seconds)), bins - 1)] += some;
  const total = Math.max(tasks.reduce((one, other) => one + other, 0), 1);
  const end = axisEnd(Math.max(...tasks) / total);
  const bars = tasks.map((some, bar) =>
    [some / total, `bar tone-${number % 6}`, `${some} tasks up to ${time(10 ** (first + (bar + 1) / BARS_PER_DECADE))}`]);
  const picture = columns(`Time of a task of ${stage.name}`, bars, end);
  const marks = [["mean", stage.ave_time], ["p99", stage.p99_time]].map(([name, seconds]) => {
    const x = place(seconds);
    picture.append(draw("line", "mark", { x1: x, x2: x, y1: 0, y2: 100 }));
    const mark = make("span", x > 0.85 * bins ? "mark left" : "mark", name);
    mark.style.left = `${100 * x / bins}%`;
    return mark;
  });
  const axis = Array.from({ length: last - first + 1 }, (_, step) => make("span", "", time(10 ** (first + step))));
  return make(
    "section", "card chart",
    make("h2", "", `Time of a task of ${stage.name}`, make("span", "aside", "share of the tasks")),
    make("p", "now", time(stage.ave_time), make("small", "", ` in the mean, p99 ${time(stage.p99_time)}`)),
    make("div", "plot", picture, make("span", "top", percent(end)), ...marks),
    make("p", "times", ...axis),
  );
}

function stageTable(stages) {
  const header = [
    "stage", "concurrency", "tasks", "failed", "mean", "p90", "p99", "put wait", "get wait", "occupancy"];
  const rows = stages.map((stage) => [
    stage.name, stage.concurrency, count(stage.num_tasks), count(stage.num_failures), time(stage.ave_time), time(stage.p90_time),
    time(stage.p99_time), ...(stage.queue
      ? [time(stage.queue.ave_put_time), time(stage.queue.ave_get_time), percent(stage.queue.occupancy_rate)]
      : ["", "", ""]),
  ].map(String));
  return card("Stages", "", table("stages", rows, header));
}

function charts(run, window) {
  const length = data.points[data.points.length - 1]?.seconds ?? 1;
  const chart = (title, options, headline, values) => {
    const element = make("section", "card chart");
    const points = data.points.map((point) => [point.seconds, ...values(point)]);
    const axis = { span: length, from: "0 s", to: span(length), when: (seconds) => `at ${time(seconds)}`, headline };
    new Chart(element, title, options).show({ points, end: length }, axis);
    return element;
  };
  const mean = (value) => data.points.reduce((total, point) => total + value(point), 0) / Math.max(data.points.length, 1);
  const queued = run.stages.map((stage, number) => [stage, number]).filter(([stage]) => stage.queue);
  const names = queued.map(([stage, number]) => (number + 1 === run.stages.length ? "ring" : `after ${stage.name}`));
  const perSecond = { unit: "samples a second", write: (value) => `${rate(value)} samples a second`, writeEnd: round };
  const cores = { unit: "cores", write: (value) => `${rate(value)} cores`, writeEnd: round };
  return grid(
    chart("Throughput", perSecond, rate(run.samples_per_second), (point) => [point.samples]),
    chart("The trainer waits for data", { unit: "of the time after the start", write: percent, most: 1 },
      percent(window.wait_share), (point) => [point.waited_seconds]),
    chart("Queues that are not empty", { unit: "share of the time", write: percent, least: 1, most: 1, names }, "",
      (point) => queued.map(([, number]) => point.occupied_seconds[number] ?? null)),
    chart("CPU time of the daemon", cores, rate(mean((point) => point.cpu_seconds)), (point) => [point.cpu_seconds]),
  );
}

function showBench() {
  const run = data.run;
  const window = run.window ?? { seconds: 0, wait_share: 0, batches_per_second: 0, stages: [] };
  const picture = make("ol", "", ...pipeline(run.verdict.limit, window, 1));
  picture.id = "pipeline";
  const range = decades(run.stages);
  add(
    tiles([
      [rate(run.samples_per_second), "samples a second"],
      [percent(window.wait_share), "of the time after the start the trainer waited"],
      [rate(run.cpu_seconds_per_1000_samples), "CPU seconds per 1,000 samples"],
      ...(run.python_cpu_seconds_per_1000_samples === undefined ? [] : [
        [rate(run.python_cpu_seconds_per_1000_samples), "CPU seconds per 1,000 samples in Python workers"],
      ]),
      [time(run.time_to_first_batch_seconds), "to the first batch"],
      [bytes(run.peak_memory_bytes), "peak memory, ring included"],
    ]),
    card("Pipeline", "the run without its start", picture),
    charts(run, window),
    grid(...run.stages.map((stage, number) => histogram(stage, number, range))),
    stageTable(run.stages),
  );
  const wait = run.wait_seconds;
  data.facts.unshift(
    ["run", `${count(run.samples)} samples in ${count(run.batches)} batches, ${run.seconds.toFixed(2)} s`],
    ["wait for a batch", `median ${time(wait.p50)}, p99 ${time(wait.p99)}`],
    ...(run.digest ? [["digest", run.digest]] : []),
  );
  showVerdict(at("line"), at("sentence"), run.verdict);
  at("verdict").className = `card limit-${["none", "trainer"].includes(run.verdict.limit) ? run.verdict.limit : "found"}`;
  return "Bottleneck";
}

function showHeadspace() {
  const found = data.run;
  const parts = [
    ["the trainer works", found.step_seconds_without_loading],
    ["waits for data", found.wait_seconds],
    ["loading slows it down", found.disturbance_seconds],
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
  const exact = (share) => `${(share * 100).toFixed(1)} %`;
  const steps = found.steps_measured;
  const hours = (value) => span(value * 3600);
  data.facts.unshift(
    ["headspace", `${exact(found.headspace)} (± ${exact(found.uncertainty)})`],
    ["steps", `${count(steps.with_data)} with data, ${count(steps.replayed)} replayed`],
    ["saved per epoch", hours(found.hours_saved_per_epoch)],
    ...(found.hours_saved === null ? [] : [["saved", `${hours(found.hours_saved)} of the remaining ${hours(found.hours_remaining)}`]]),
  );
  // The claim and its basis.
  const [claim, ...numbers] = found.sentence.split(": ");
  showLine(at("line"), claim);
  showSentence(at("sentence"), numbers.join(": "));
  at("notes").hidden = found.notes.length === 0;
  at("notes").append(...found.notes.map((note) => make("li", "", ...words(note))));
  return "Headspace";
}

document.title = data.title;
at("title").textContent = data.title;
at("process").textContent = `forebay ${data.release}`;
const kinds = { bench: showBench, headspace: showHeadspace, samples: () => showSamples(data.run) };
at("heading").textContent = kinds[data.kind]();
add(card("Machine and run", "", table("facts", data.facts)));
if (data.config) {
  const note = make("span", "aside", "as forebay check prints it");
  add(make("details", "card", make("summary", "", make("h2", "", "Configuration", note)), make("pre", "", data.config.join("\n"))));
}
