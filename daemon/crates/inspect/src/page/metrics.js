// Formats numbers and stores the daemon's history. Does not draw.

export function rate(value) {
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

// For the end of an axis.
export const round = (value) => (value >= 1 ? value.toLocaleString("en") : String(Number(value.toPrecision(1))));

export const count = (value) => value.toLocaleString("en");

export const percent = (share) => `${Math.round(share * 100)} %`;

// A short time, such as a task's.
export function time(seconds) {
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  return `${seconds.toFixed(1)} s`;
}

// A part of a run, with the units of `span` in table.rs.
export function span(seconds) {
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const units = [["min", 60, 3570], ["h", 3600, 172800], ["days", 86400, Infinity]];
  const [unit, length] = units.find(([, , end]) => seconds < end);
  const value = seconds / length;
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size < 10 && unit > 0 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

// The end of an axis: 1, 2 or 5 times a power of ten.
export function axisEnd(highest) {
  if (!(highest > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 5, 10].map((step) => step * power).find((end) => end >= highest);
}

// The ranges of plots: the length, the length and the kind of the steps, and the number of steps per point.
export const RANGES = [
  { name: "3 min", seconds: 180, kind: "seconds", step: 1, join: 1 },
  { name: "1 h", seconds: 3600, kind: "seconds", step: 1, join: 10 },
  { name: "1 day", seconds: 86400, kind: "minutes", step: 60, join: 5 },
];
const MOST = { seconds: 3600, minutes: 1440 };
const VALUES = ["samples", "batches", "waited"];

// The rates of all streams, from /history.json piece by piece.
export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.streams = new Map();
    this.pid = null;
    this.uptime = 0;
  }

  // The first unknown second.
  get since() {
    const ends = [...this.streams.values()].map(({ seconds }) => seconds.first + seconds.samples.length);
    return ends.length > 0 ? Math.min(...ends) : 0;
  }

  // Adds a piece; false if it is from another daemon, so that the whole history must be requested again.
  add(report) {
    const isAnother = this.pid !== null && (report.pid !== this.pid || report.uptime_seconds < this.uptime);
    if (isAnother) {
      this.clear();
      return false;
    }
    this.pid = report.pid;
    this.uptime = report.uptime_seconds;
    for (const { name, ...pieces } of report.streams) {
      const known = this.streams.get(name) ?? {};
      for (const kind of ["seconds", "minutes"]) known[kind] = joined(known[kind], pieces[kind], MOST[kind]);
      this.streams.set(name, known);
    }
    return true;
  }

  // The points of a plot, [seconds, value or null], and the time of its right end.
  points(stream, value, { seconds, kind, step, join }) {
    const steps = this.streams.get(stream)?.[kind];
    if (!steps) return { points: [], end: 0 };
    const end = steps.first + steps[value].length;
    const begin = Math.max(steps.first, end - seconds / step);
    const groups = new Map();
    for (let number = begin; number < end; number += 1) {
      // By their number in the history, so that a point does not change when another one is added.
      const group = Math.floor(number / join);
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(steps[value][number - steps.first]);
    }
    const points = [...groups].map(([group, values]) => {
      const known = values.filter((one) => one !== null);
      const mean = known.reduce((total, one) => total + one, 0) / known.length;
      return [Math.min((group + 1) * join, end) * step, known.length > 0 ? mean : null];
    });
    return { points, end: end * step };
  }
}

function joined(known, piece, most) {
  const isNext = known && piece.first >= known.first && piece.first <= known.first + known.samples.length;
  if (!isNext) return piece;
  const all = { first: known.first };
  for (const value of VALUES) all[value] = known[value].slice(0, piece.first - known.first).concat(piece[value]);
  const old = Math.max(all.samples.length - most, 0);
  all.first += old;
  for (const value of VALUES) all[value] = all[value].slice(old);
  return all;
}
