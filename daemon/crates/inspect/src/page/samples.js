// Samples as a trainer receives them: pictures with their boxes and masks, and all other fields as text, next to their files.

import { count } from "./metrics.js";
import { at, make, say } from "./parts.js";

const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

function canvas(width, height, label) {
  const element = make("canvas", "picture");
  Object.assign(element, { width, height });
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  return element;
}

// Height × width × channels bytes of one, three or four channels.
function picture(field) {
  const element = canvas(field.width, field.height, field.name);
  const from = bytesOf(field.pixels);
  const to = new ImageData(field.width, field.height);
  for (let pixel = 0; pixel < field.width * field.height; pixel += 1) {
    for (let channel = 0; channel < 3; channel += 1) {
      to.data[4 * pixel + channel] = from[pixel * field.channels + (field.channels === 1 ? 0 : channel)];
    }
    to.data[4 * pixel + 3] = field.channels === 4 ? from[4 * pixel + 3] : 255;
  }
  element.getContext("2d").putImageData(to, 0, 0);
  return element;
}

// The colour of a class in a mask or of a box: neighbouring numbers differ strongly. 255 is usually the class that a loss
// ignores.
function colourOf(level) {
  if (level === 255) return [255, 255, 255];
  return [0, 2.1, -2.1].map((turn) => 128 + 127 * Math.cos(2.4 * level + turn));
}

// A mask's classes as colours over its picture; nothing over class 0, the background.
function masked(mask, of) {
  const element = picture(of);
  element.setAttribute("aria-label", `${mask.name} over ${of.name}`);
  const context = element.getContext("2d");
  const drawn = context.getImageData(0, 0, mask.width, mask.height);
  bytesOf(mask.pixels).forEach((level, pixel) => {
    if (level === 0) return;
    colourOf(level).forEach((colour, channel) => {
      drawn.data[4 * pixel + channel] = (drawn.data[4 * pixel + channel] + colour) / 2;
    });
  });
  context.putImageData(drawn, 0, 0);
  return element;
}

// Boxes are in pixels of the field, which may be drawn smaller. Each has the colour and the name of its class, where the
// sample has labels for them; names are drawn last, over all frames.
function frame(element, field, step) {
  const context = element.getContext("2d");
  const side = Math.max(element.width, element.height);
  const width = side / 150;
  const colour = (place) => {
    const label = field.labels?.[place];
    return label === undefined ? "#ffd23f" : `rgb(${colourOf(label).map(Math.round).join(" ")})`;
  };
  field.boxes.forEach(([left, top, right, bottom], place) => {
    for (const [style, line] of [["#000a", 2 * width], [colour(place), width]]) {
      Object.assign(context, { strokeStyle: style, lineWidth: line });
      context.strokeRect(left / step, top / step, (right - left) / step, (bottom - top) / step);
    }
  });
  const height = side / 24;
  Object.assign(context, { font: `${0.8 * height}px sans-serif`, textBaseline: "middle" });
  (field.names ?? []).forEach((name, place) => {
    const [left, top] = field.boxes[place].map((edge) => edge / step);
    // Above the box, or inside it at the picture's edge.
    const above = Math.max(0, top - height);
    const wide = context.measureText(name).width + height / 2;
    const from = Math.max(0, Math.min(left, element.width - wide));
    Object.assign(context, { fillStyle: colour(place) });
    context.fillRect(from, above, wide, height);
    Object.assign(context, { fillStyle: "#000" });
    context.fillText(name, from + height / 4, above + height / 2);
  });
}

const MOST_NAMES = 24;

// The names of labels; only the first ones of many.
function named(names) {
  const more = names.length > MOST_NAMES ? ", …" : "";
  return names.length === 0 ? "none" : names.slice(0, MOST_NAMES).join(", ") + more;
}

const MOST_PIXELS_A_SIDE = 512;

// The file as decoded by the browser; nothing if it cannot decode it.
function before(sample) {
  const element = make("figure", "before");
  createImageBitmap(new Blob([bytesOf(sample.file)])).then((bitmap) => {
    const scale = Math.min(1, MOST_PIXELS_A_SIDE / Math.max(bitmap.width, bitmap.height));
    const width = Math.max(1, Math.round(bitmap.width * scale));
    const height = Math.max(1, Math.round(bitmap.height * scale));
    const drawn = canvas(width, height, "the file");
    drawn.getContext("2d").drawImage(bitmap, 0, 0, width, height);
    element.append(drawn, make("figcaption", "", `the file, ${bitmap.width} × ${bitmap.height}`));
  }, () => element.remove());
  return element;
}

function show(sample) {
  const pictures = [];
  const lines = [];
  let title = "";
  const boxes = sample.fields.filter((field) => field.boxes);
  for (const field of sample.fields) {
    if (field.pixels !== undefined) {
      const of = field.mask_of && sample.fields.find((other) => other.name === field.mask_of);
      const drawn = of ? masked(field, of) : picture(field);
      if (pictures.length === 0) boxes.forEach((some) => frame(drawn, some, field.step));
      const size = `${field.width * field.step} × ${field.height * field.step}`;
      pictures.push(make("figure", "", drawn, make("figcaption", "", [of ? `${field.name} over ${of.name}` : field.name, size, field.note].filter(Boolean).join(", "))));
    } else if (field.class !== undefined && title === "") {
      title = field.class;
    } else {
      const names = field.boxes === undefined && field.names ? named(field.names) : undefined;
      const text = field.text ?? field.class ?? names ?? field.value ?? `${field.boxes.length} boxes`;
      lines.push(make("dt", "", field.name), make("dd", field.text === undefined ? "" : "text", text));
    }
  }
  if (sample.file) pictures.push(before(sample));
  const name = sample.path.split("/").pop();
  const head = make("h2", "", ...(title ? [make("b", "", title), " "] : []), make("span", "", `sample ${sample.id}`));
  const where = make("p", "where", name);
  where.title = sample.path;
  return make("section", "card sample", head, make("div", "pictures", ...pictures), make("dl", "", ...lines), where);
}

export function showSamples(run) {
  at("report").append(make("div", "sheet", ...run.samples.map(show)));
  const classes = run.classes > 0 ? `, in ${count(run.classes)} classes` : "";
  say(at("line"), `${count(run.samples.length)} of ${count(run.of)} samples${classes}`);
  say(at("sentence"), "The first rows of the first batch, as a trainer gets them; beside them the files, where they are pictures.");
  return "What the trainer gets";
}
