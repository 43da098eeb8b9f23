// Line charts over time. A pointer, or the arrow keys if the plot has the focus, select the values at a moment.

import { axisEnd } from "./metrics.js";
import { draw, legend, make, plot, say } from "./parts.js";

export class Chart {
  // The end of the value axis is between `least` and `most`; `write` formats a value, `writeEnd` the axis' end. `names`
  // are the names of several lines.
  constructor(card, title, { unit = "", write, writeEnd = write, least = 0, most = Infinity, names }) {
    Object.assign(this, { title, write, writeEnd, least, most, names });
    this.heading = make("h2", "", title);
    this.value = make("span");
    this.unit = make("small", "", unit);
    this.now = make("span", "latest");
    this.area = draw("path", "area");
    this.lines = (names ?? [title]).map((_, number) => draw("path", `line tone-${number % 6}`));
    this.top = make("span", "top");
    this.cursor = make("i", "cursor");
    this.cursor.hidden = true;
    const picture = plot();
    picture.append(this.area, ...this.lines);
    this.box = make("div", "plot", picture, this.top, this.cursor);
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "slider");
    this.box.setAttribute("aria-label", title);
    this.from = make("span");
    this.reading = make("span", "reading");
    this.to = make("span");
    card.append(
      this.heading,
      make("p", "now", this.value, " ", this.unit, this.now),
      this.box,
      make("p", "times", this.from, this.reading, this.to),
    );
    if (names) card.append(legend(names));
    this.points = [];
    this.read(null);
    this.box.addEventListener("pointermove", (event) => {
      const { left, width } = this.box.getBoundingClientRect();
      this.readAt(this.end - this.span * (1 - (event.clientX - left) / width));
    });
    this.box.addEventListener("pointerleave", () => this.read(null));
    this.box.addEventListener("blur", () => this.read(null));
    this.box.addEventListener("keydown", (event) => this.press(event));
  }

  // Points are [seconds, value or null, …], a value for each line; null leaves a gap. `end` is the time of the right end,
  // `when` formats a time.
  show({ points, end }, { span, from, to, when, headline, latest = "" }) {
    Object.assign(this, { points, end, span, when });
    const values = points.flatMap((point) => point.slice(1)).filter((value) => value !== null);
    const high = Math.min(Math.max(axisEnd(Math.max(...values, 0)), this.least), this.most);
    const path = (run) => `M${run.map((point) => point.join(" ")).join("L")}`;
    this.lines.forEach((line, number) => {
      const runs = [[]];
      for (const point of points) {
        const value = point[number + 1];
        const place = [100 * this.share(point[0]), 100 * (1 - value / high)];
        if (value === null) runs.push([]);
        else runs[runs.length - 1].push(place.map((part) => part.toFixed(2)));
      }
      const drawn = runs.filter((run) => run.length > 0);
      line.setAttribute("d", drawn.map(path).join(""));
      const area = (run) => `${path(run)}L${run[run.length - 1][0]} 100L${run[0][0]} 100Z`;
      if (this.lines.length === 1) this.area.setAttribute("d", drawn.map(area).join(""));
    });
    say(this.value, headline);
    say(this.now, latest);
    say(this.top, this.writeEnd(high));
    say(this.from, from);
    say(this.to, to);
    this.read(this.at === null ? null : this.points.findIndex(([seconds]) => seconds >= this.at));
  }

  share(seconds) {
    return 1 - (this.end - seconds) / this.span;
  }

  readAt(seconds) {
    const distance = (point) => Math.abs(point[0] - seconds);
    let best = null;
    this.points.forEach((point, number) => {
      if (best === null || distance(point) < distance(this.points[best])) best = number;
    });
    this.read(best);
  }

  // Shows the values of a point by its index; null: none.
  read(number) {
    const point = this.points[number ?? -1];
    this.number = point ? number : null;
    this.at = point ? point[0] : null;
    this.cursor.hidden = !point;
    if (point) this.cursor.style.left = `${100 * this.share(point[0])}%`;
    const shown = point ?? this.points[this.points.length - 1];
    const text = shown ? `${this.words(shown)}, ${this.when(shown[0])}` : "nothing yet";
    say(this.reading, point ? text : "");
    const set = (name, value) => this.box.setAttribute(`aria-value${name}`, String(value));
    set("min", 0);
    set("max", Math.max(this.points.length - 1, 0));
    set("now", this.number ?? Math.max(this.points.length - 1, 0));
    set("text", text);
  }

  words(point) {
    const words = point.slice(1).map((value, number) => {
      const name = this.names ? `${this.names[number]} ` : "";
      return name + (value === null ? "–" : this.write(value));
    });
    return words.join(", ");
  }

  press(event) {
    const last = this.points.length - 1;
    const now = this.number ?? last + 1;
    const page = Math.max(Math.round(last / 10), 1);
    const moves = {
      ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - page, PageDown: now + page, Home: 0, End: last,
    };
    if (last < 0 || !(event.key in moves)) return;
    event.preventDefault();
    this.read(Math.min(Math.max(moves[event.key], 0), last));
  }
}
