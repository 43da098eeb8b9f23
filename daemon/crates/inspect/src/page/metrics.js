// The difference of two reports of one daemon, and how numbers are written. No drawing here.
//
// The rules are those of observe/window.rs: counts, times and occupied time are subtracted; a queue that restarted with
// another session is used unchanged. Clocks are the daemon's, since an answer can be up to 200 ms old.

// The length of the window that current rates are taken over.
export const WINDOW_SECONDS = 5;
// The span of the charts.
export const HISTORY_SECONDS = 180;

const atLeastZero = (value) => Math.max(value, 0);
const sum = (items, of) => items.reduce((total, item) => total + of(item), 0);

// Seconds on the daemon's clock: the age of the queue after the first stage.
export function clock(report) {
  const queue = report.streams[0]?.stages[0]?.queue;
  return queue ? queue.elapsed : 0;
}

// The report to compare the newest with: the latest that is at least a window old, else the oldest.
export function earlierThan(reports) {
  const newest = reports[reports.length - 1];
  const old = reports.filter((one) => clock(newest) - clock(one) >= WINDOW_SECONDS);
  return old.length > 0 ? old[old.length - 1] : reports[0];
}

function queueBetween(queue, before) {
  if (!queue) return null;
  if (!before || queue.elapsed <= before.elapsed || queue.num_items < before.num_items) {
    return { occupancy: queue.occupancy_rate };
  }
  const elapsed = queue.elapsed - before.elapsed;
  const occupied = queue.occupancy_rate * queue.elapsed - before.occupancy_rate * before.elapsed;
  return { occupancy: Math.min(Math.max(occupied / elapsed, 0), 1) };
}

// A stage between two reports `seconds` apart; without `before`, since its start.
export function stageBetween(stage, before, seconds) {
  const done = stage.num_tasks - stage.num_failures;
  const doneBefore = before ? before.num_tasks - before.num_failures : 0;
  const tasks = atLeastZero(done - doneBefore);
  const busySeconds = atLeastZero(stage.busy_seconds - (before ? before.busy_seconds : 0));
  return {
    name: stage.name,
    concurrency: stage.concurrency,
    reason: stage.concurrency_reason,
    rate: seconds > 0 ? tasks / seconds : 0,
    meanSeconds: tasks > 0 ? busySeconds / tasks : 0,
    busy: seconds > 0 ? Math.min(busySeconds / seconds, stage.concurrency) : 0,
    queue: queueBetween(stage.queue, before?.queue),
  };
}

// One stream between two reports.
export function between(earlier, later, streamName) {
  const stream = later.streams.find((one) => one.name === streamName) ?? later.streams[0];
  const before = earlier.streams.find((one) => one.name === stream.name);
  const seconds = atLeastZero(clock(later) - clock(earlier));
  const stages = stream.stages.map((stage) =>
    stageBetween(stage, before?.stages.find((one) => one.name === stage.name), seconds));
  const sessions = later.sessions.filter((one) => one.stream === stream.name);
  const moved = sessions.map((session) => {
    const same = earlier.sessions.find((one) => one.session === session.session);
    return {
      seconds: session.seconds - (same ? same.seconds : 0),
      waited: atLeastZero(session.wait_seconds - (same ? same.wait_seconds : 0)),
      batches: atLeastZero(session.batches_taken - (same ? same.batches_taken : 0)),
    };
  });
  const attached = sum(moved, (one) => one.seconds);
  return {
    seconds,
    stages,
    sessions,
    samplesPerSecond: stages[stages.length - 1]?.rate ?? 0,
    batchesPerSecond: sum(moved, (one) => (one.seconds > 0 ? one.batches / one.seconds : 0)),
    waitShare: attached > 0 ? Math.min(sum(moved, (one) => one.waited) / attached, 1) : null,
    cpuCores: seconds > 0 ? atLeastZero(later.cpu_seconds - earlier.cpu_seconds) / seconds : 0,
    memoryBudgetBytes: sum(later.streams, (one) => one.memory_budget_bytes),
  };
}

export function rate(value) {
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

// For the end of an axis.
export const round = (value) => (value >= 1 ? value.toLocaleString("en") : String(Number(value.toPrecision(1))));

export const percent = (share) => `${Math.round(share * 100)} %`;

export function time(seconds) {
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  return `${seconds.toFixed(1)} s`;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${count < 10 && unit > 0 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

// The end of an axis: 1, 2 or 5 times a power of ten.
export function axisEnd(highest) {
  if (!(highest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 5, 10].map((step) => step * power).find((end) => end >= highest);
}
