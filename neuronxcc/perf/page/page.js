"use strict";
// Shows what neuronxcc/perf/page/__init__.py puts into the page. Times are picoseconds.

const known = JSON.parse(document.getElementById("contents").textContent);
const byId = (id) => document.getElementById(id);
const KINDS = { "<i4": Int32Array, "<f8": Float64Array };
const COLOURS = { tensor: "#2f6fde", vector: "#0e9f6e", scalar: "#d97706", gpsimd: "#9333ea",
  sync: "#64748b", load: "#0891b2", store: "#be185d", move: "#7c6f64", dma: "#0891b2" };
const GUTTER = 92, AXIS = 22, ENGINE = 24, LANE = 9, CHART = 46, GAP = 6;

async function unpacked(column) {
  const bytes = Uint8Array.from(atob(column.data), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new KINDS[column.kind](await new Response(stream).arrayBuffer());
}

function time(ps) {
  const size = Math.abs(ps);
  if (size >= 1e9) return (ps / 1e9).toFixed(size >= 1e11 ? 1 : 3) + " ms";
  if (size >= 1e6) return (ps / 1e6).toFixed(size >= 1e8 ? 1 : 3) + " µs";
  return (ps / 1e3).toFixed(size >= 1e5 ? 0 : 1) + " ns";
}
function amount(value, unit) {
  for (const [name, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${name}${unit}`;
  }
  return `${Math.round(value)} ${unit}`;
}
const percent = (share) => (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %";

function element(kind, text, name) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

// --- summary, advice, tables -------------------------------------------------------------------

function card(title) {
  const made = element("div", undefined, "card");
  made.append(element("h3", title));
  byId("summary").append(made);
  return made;
}
function facts(title, rows) {
  const list = element("dl");
  for (const [name, value] of rows) list.append(element("dt", name), element("dd", value));
  card(title).append(list);
}
function bars(title, shares) {
  const made = card(title);
  for (const [name, share] of Object.entries(shares)) {
    const row = element("div", undefined, "bar"), back = element("i"), front = element("span");
    front.style.width = `${Math.min(100, 100 * share)}%`;
    front.style.background = COLOURS[name] ?? "var(--dim)";
    back.append(front);
    row.append(element("span", name), back, element("b", percent(share)));
    made.append(row);
  }
}

function showSummary() {
  const about = known.about, us = 1e6;
  const [low, high] = about.interval_us;
  byId("name").textContent = `${about.name} on ${about.target}`
    + (about.cores > 1 ? `, ${about.cores} cores` : "");
  const head = byId("headline");
  head.append(element("b", time(about.device_us * us)), " on the device, ",
    `${time(about.latency_us * us)} with the launch, bound by ${about.bound_by}`);
  byId("trust").textContent = `Predicted, not measured: expected with the launch between `
    + `${time(low * us)} and ${time(high * us)}; model ${about.model}, `
    + (about.calibrated ? "calibrated for this chip" : "not calibrated for this chip");
  const seconds = about.device_us / 1e6 || 1;
  facts("Work", [
    ["instructions", about.instructions.toLocaleString("en")],
    ["HBM", amount(about.hbm_bytes, "B")],
    ["HBM rate", `${amount(about.hbm_bytes / seconds, "B/s")} of ${amount(about.hbm_limit, "B/s")}`],
    ["products", `${amount(about.flops, "flop")}, ${amount(about.flops / seconds, "flop/s")}`],
    ["spilled", amount(about.spilled_bytes, "B")],
  ]);
  bars("Busy", about.utilisation);
  bars("The end waited for", about.critical);
  if (known.advice.length) {
    const list = element("ul");
    for (const advice of known.advice) {
      const item = element("li");
      item.append(element("b", advice.rule), ": " + advice.text);
      list.append(item);
    }
    byId("advice").append(list);
  }
  const notes = about.notes.map((note) => `not shown or not modelled: ${note}`);
  notes.push("made by neuronxcc.perf.page; see docs/performance.md");
  for (const note of notes) byId("notes").append(element("div", note));
}

function table(id, names, rows) {
  const head = element("tr");
  for (const [name, kind] of names) head.append(element("th", name, kind));
  const body = element("tbody");
  for (const cells of rows) {
    const row = element("tr");
    for (const cell of cells) row.append(cell);
    body.append(row);
  }
  const top = element("thead");
  top.append(head);
  byId(id).append(top, body);
}
function cell(content, kind) {
  const made = element("td", undefined, kind);
  made.append(content);
  return made;
}
function button(text, action) {
  const made = element("button", text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

function showTables(view) {
  const order = known.lines.map((_, i) => i).filter((i) => known.lines[i].instructions);
  order.sort((a, b) => known.lines[b].busy_us - known.lines[a].busy_us);
  table("lines", [["share", "n"], ["busy", "n"], ["instructions", "n"], ["line"]],
    order.map((i) => {
      const line = known.lines[i], where = `${line.file}:${line.line}`;
      const last = cell(button(where, () => view.search(where)));
      last.append(" ", element("code", line.text));
      return [cell(percent(line.share), "n"), cell(time(line.busy_us * 1e6), "n"),
        cell(line.instructions.toLocaleString("en"), "n"), last];
    }));
  table("instructions", [["busy", "n"], ["count", "n"], ["engine"], ["instruction"]],
    known.table.map((row) => [cell(time(row.busy_us * 1e6), "n"),
      cell(row.count.toLocaleString("en"), "n"), cell(row.engine),
      cell(button(row.name, () => view.search(row.name)))]));
}

// --- the timeline ------------------------------------------------------------------------------

class View {
  constructor(columns, charts) {
    Object.assign(this, columns);
    this.count = known.columns.count;
    this.charts = charts;
    this.total = Math.max(1, this.end.reduce((a, b) => Math.max(a, b), 0));
    this.canvas = byId("canvas");
    this.chosen = -1;
    this.wanted = null;
    this.drawn = 0;
    this.placeTracks();
    this.followers();
    this.listen();
    this.fit();
  }

  placeTracks() {
    const rows = known.tracks.map(() => []);
    const lanes = known.tracks.map(() => 1);
    for (let i = 0; i < this.count; i++) {
      rows[this.track[i]].push(i);
      lanes[this.track[i]] = Math.max(lanes[this.track[i]], this.lane[i] + 1);
    }
    let y = AXIS;
    this.tracks = known.tracks.map((track, t) => {
      const members = Int32Array.from(rows[t]).sort((a, b) => this.start[a] - this.start[b]);
      // Of a member and all before it, when the last one ends: to find the first one in sight.
      const until = new Float64Array(members.length);
      let last = 0;
      members.forEach((i, at) => { until[at] = last = Math.max(last, this.end[i]); });
      const height = track.engine && lanes[t] < 2 ? ENGINE : Math.max(ENGINE, lanes[t] * LANE);
      const made = { ...track, members, until, y, height, lanes: lanes[t] };
      y += height + GAP;
      return made;
    });
    for (const chart of this.charts) {
      chart.y = y;
      y += CHART + GAP;
    }
    this.height = y;
  }

  followers() {
    const sizes = new Int32Array(this.count + 1);
    for (const d of this.other) sizes[d + 1]++;
    for (let i = 0; i < this.count; i++) sizes[i + 1] += sizes[i];
    this.nextFirst = sizes.slice();
    this.next = new Int32Array(this.other.length);
    const at = sizes.slice();
    for (let i = 0; i < this.count; i++) {
      for (let e = this.first[i]; e < this.first[i + 1]; e++) this.next[at[this.other[e]]++] = i;
    }
  }

  // From a time to a place, and back.
  x(t) { return GUTTER + (t - this.from) / (this.to - this.from) * (this.width - GUTTER); }
  t(x) { return this.from + (x - GUTTER) / (this.width - GUTTER) * (this.to - this.from); }

  fit() { this.range(0, this.total); }
  range(from, to) {
    const least = 1000, size = Math.min(this.total * 1.02, Math.max(least, to - from));
    this.from = Math.min(Math.max(from, -0.01 * this.total), this.total * 1.01 - size);
    this.to = this.from + size;
    this.redraw();
  }
  zoom(factor, x = (GUTTER + this.width) / 2) {
    const t = this.t(x);
    this.range(t - (t - this.from) * factor, t + (this.to - t) * factor);
  }

  search(text) {
    byId("find").value = text;
    const low = text.trim().toLowerCase();
    if (!low) this.wanted = null;
    else {
      const works = known.works.map((work) => work.name.toLowerCase().includes(low));
      const lines = known.lines.map((l) => `${l.file}:${l.line}`.toLowerCase() === low
        || l.text.toLowerCase().includes(low));
      this.wanted = (i) => works[this.work[i]] || lines[this.line[i]];
    }
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  // The members of a track that may be in sight: the first, and behind the last.
  inSight(track) {
    const lower = (values, get, limit) => {
      let low = 0, high = values.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (get(middle) < limit) low = middle + 1; else high = middle;
      }
      return low;
    };
    return [lower(track.members, (i) => track.until[i], this.from),
      lower(track.members, (i) => this.start[track.members[i]], this.to)];
  }

  draw() {
    const ratio = window.devicePixelRatio || 1, canvas = this.canvas;
    this.width = canvas.parentElement.clientWidth;
    canvas.style.height = `${this.height}px`;
    canvas.width = this.width * ratio;
    canvas.height = this.height * ratio;
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.body);
    this.ink = style.getPropertyValue("--ink");
    this.dim = style.getPropertyValue("--dim");
    this.rule = style.getPropertyValue("--rule");
    this.mark = style.getPropertyValue("--mark");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.drawn = 0;
    this.axis(pen);
    const busy = this.tracks.map((track) => this.drawTrack(pen, track));
    for (const chart of this.charts) this.drawChart(pen, chart);
    this.drawSkipped(pen);
    if (this.chosen >= 0) this.drawWaits(pen);
    const said = this.tracks.map((track, t) => [track, busy[t]]).filter(([track]) => track.engine);
    byId("visible").textContent = `${time(this.to - this.from)} in sight: `
      + said.map(([track, share]) => `${track.name} ${percent(share)}`).join(", ");
  }

  axis(pen) {
    const span = this.to - this.from, rough = span / Math.max(2, (this.width - GUTTER) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    pen.strokeStyle = this.rule;
    pen.fillStyle = this.dim;
    pen.beginPath();
    for (let t = Math.ceil(Math.max(0, this.from) / step) * step; t <= this.to; t += step) {
      const x = Math.round(this.x(t)) + 0.5;
      pen.moveTo(x, AXIS - 6);
      pen.lineTo(x, this.height);
      pen.fillText(time(t), x + 3, 9);
    }
    pen.stroke();
  }

  drawTrack(pen, track) {
    const colour = COLOURS[track.name] ?? "#64748b", [low, high] = this.inSight(track);
    const height = track.lanes > 1 ? track.height / track.lanes : track.height;
    pen.fillStyle = this.ink;
    pen.fillText((known.about.cores > 1 ? `${track.core} ` : "") + track.name, 4,
      track.y + track.height / 2);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, track.y, this.width - GUTTER, track.height);
    pen.clip();
    // What lies within one pixel of what is drawn is not drawn again.
    const behind = new Float64Array(track.lanes).fill(-1), light = behind.slice();
    let busy = 0;
    for (let at = low; at < high; at++) {
      const i = track.members[at], lane = this.lane[i], y = track.y + lane * height;
      const begin = this.solid_from[i], until = this.solid_to[i];
      busy += Math.max(0, Math.min(until, this.to) - Math.max(begin, this.from));
      const faint = this.wanted && !this.wanted(i), spill = known.works[this.work[i]].spill;
      const last = this.x(this.end[i]);
      if (last > light[lane]) {
        const first = this.x(this.start[i]);
        pen.globalAlpha = faint ? 0.04 : 0.22;
        pen.fillStyle = colour;
        pen.fillRect(first, y + 1, Math.max(0.5, last - first), height - 2);
        light[lane] = Math.ceil(last);
      }
      const right = this.x(until);
      if (right > behind[lane] || (this.wanted && !faint)) {
        const left = this.x(begin);
        pen.globalAlpha = faint ? 0.12 : 0.9;
        pen.fillStyle = spill ? "#dc2626" : this.wanted && !faint ? this.mark : colour;
        pen.fillRect(left, y + 1, Math.max(0.5, right - left - 0.3), height - 2);
        behind[lane] = Math.floor(right);
        this.drawn++;
        if (right - left > 44 && height > 12) {
          pen.globalAlpha = faint ? 0.3 : 1;
          pen.fillStyle = "#fff";
          const from = Math.max(left, GUTTER), name = known.works[this.work[i]].name;
          pen.fillText(name, from + 4, y + height / 2, Math.max(10, right - from - 8));
        }
      }
    }
    pen.restore();
    const seen = Math.min(this.to, this.total) - Math.max(this.from, 0);
    return seen > 0 ? busy / seen : 0;
  }

  drawChart(pen, chart) {
    const { time: times, value, limit, y } = chart, bottom = y + CHART - 1;
    const most = chart.most, scale = (CHART - 4) / most;
    pen.fillStyle = this.ink;
    pen.fillText((known.about.cores > 1 ? `${chart.core} ` : "") + chart.name, 4, y + 12);
    pen.fillStyle = this.dim;
    pen.fillText(amount(most, chart.unit), 4, y + 28, GUTTER - 8);
    pen.strokeStyle = this.rule;
    pen.strokeRect(GUTTER + 0.5, y + 0.5, this.width - GUTTER - 1, CHART - 1);
    pen.fillStyle = chart.name === "DMA" ? COLOURS.dma : "#6366f1";
    pen.globalAlpha = 0.6;
    // The highest value within a pixel.
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] < this.from) low = middle + 1; else high = middle;
    }
    for (let at = Math.max(0, low - 1); at < times.length && times[at] < this.to;) {
      const left = Math.max(GUTTER, this.x(times[at])), edge = Math.floor(left) + 1;
      let top = value[at], next = at + 1;
      while (next < times.length && this.x(times[next]) < edge) top = Math.max(top, value[next++]);
      const right = next < times.length ? Math.min(this.width, this.x(times[next])) : this.width;
      const height = Math.min(CHART - 2, top * scale);
      if (top > 0) pen.fillRect(left, bottom - height, Math.max(1, right - left), height);
      at = next;
    }
    pen.globalAlpha = 1;
    if (limit < most) {
      pen.strokeStyle = this.mark;
      pen.beginPath();
      pen.moveTo(GUTTER, bottom - limit * scale);
      pen.lineTo(this.width, bottom - limit * scale);
      pen.stroke();
    }
  }

  drawSkipped(pen) {
    for (const [at, times, period] of known.skipped) {
      const x = this.x(at * 1e6);
      if (x < GUTTER || x > this.width) continue;
      pen.strokeStyle = pen.fillStyle = this.mark;
      pen.setLineDash([4, 3]);
      pen.beginPath();
      pen.moveTo(x, AXIS);
      pen.lineTo(x, this.height);
      pen.stroke();
      pen.setLineDash([]);
      pen.fillText(`+ ${times.toLocaleString("en")} × ${time(period * 1e6)}`, x + 4, AXIS + 6);
    }
  }

  waits(i) {
    const found = [...this.other.subarray(this.first[i], this.first[i + 1])];
    if (this.own[i] >= 0) found.push(this.own[i]);
    return found;
  }
  middle(i) {
    const track = this.tracks[this.track[i]], lane = track.height / track.lanes;
    return track.y + (this.lane[i] + 0.5) * lane;
  }
  drawWaits(pen) {
    const i = this.chosen;
    const line = (a, b, colour, width) => {
      const x0 = this.x(this.end[a]), x1 = this.x(this.start[b]);
      const y0 = this.middle(a), y1 = this.middle(b), bend = Math.max(12, (x1 - x0) / 2);
      pen.strokeStyle = pen.fillStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
      pen.stroke();
      pen.beginPath();
      pen.arc(x1, y1, 3, 0, 7);
      pen.fill();
    };
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, this.width - GUTTER, this.height);
    pen.clip();
    const after = this.next.subarray(this.nextFirst[i], this.nextFirst[i + 1]);
    for (const d of after.subarray(0, 200)) line(i, d, this.dim, 1);
    for (const d of this.waits(i)) line(d, i, "#dc2626", 1);
    // What it waited for last, and so on to the program's begin.
    for (let b = i, n = 0; this.cause[b] >= 0 && n < 2000; b = this.cause[b], n++) {
      line(this.cause[b], b, this.mark, n ? 1 : 2);
    }
    pen.strokeStyle = this.mark;
    pen.lineWidth = 2;
    const track = this.tracks[this.track[i]], lane = track.height / track.lanes;
    const left = this.x(this.start[i]), right = this.x(this.end[i]);
    pen.strokeRect(left, track.y + this.lane[i] * lane, Math.max(2, right - left), lane);
    pen.restore();
  }

  // --- what is under the mouse -------------------------------------------------------------------

  at(x, y) {
    const track = this.tracks.find((each) => y >= each.y && y < each.y + each.height);
    if (!track || x < GUTTER) return -1;
    const lane = Math.min(track.lanes - 1, Math.floor((y - track.y) / track.height * track.lanes));
    const t = this.t(x), reach = this.t(x + 2) - t, [low, high] = this.inSight(track);
    let best = -1, nearest = reach;
    for (let at = low; at < high; at++) {
      const i = track.members[at];
      if (this.lane[i] !== lane) continue;
      if (this.start[i] > t + reach) break;
      const solid = t >= this.solid_from[i] && t < this.solid_to[i];
      const away = solid ? 0 : t < this.start[i] ? this.start[i] - t
        : t > this.end[i] ? t - this.end[i] : reach / 2;
      if (away <= nearest) [best, nearest] = [i, away];
      if (solid) break;
    }
    return best;
  }
  title(i) {
    const line = known.lines[this.line[i]];
    return `${known.works[this.work[i]].name} (${line ? `${line.file}:${line.line}` : "no line"})`;
  }
  describe(i) {
    const work = known.works[this.work[i]], line = known.lines[this.line[i]];
    const rows = [`${work.name} on ${known.tracks[this.track[i]].name}`,
      `from ${time(this.start[i])}, busy ${time(this.solid_to[i] - this.solid_from[i])}, `
      + `ready after ${time(this.end[i] - this.start[i])}`];
    if (work.bytes) rows.push(`${amount(work.bytes, "B")} in rows of ${amount(work.row, "B")}`
      + (work.spill ? ", spilled for want of room" : ""));
    if (work.product) rows.push(`${work.product.rows} × ${work.product.columns} of the array, `
      + `${work.product.moving} rows of ${work.product.dtype}`
      + (work.product.transpose ? ", a transpose" : ""));
    if (line) rows.push(`${line.file}:${line.line}  ${line.text}`);
    if (this.cause[i] >= 0) rows.push(`waited last for ${this.title(this.cause[i])}`);
    return rows.join("\n");
  }
  choose(i) {
    this.chosen = i;
    const detail = byId("detail");
    detail.replaceChildren();
    if (i >= 0) {
      detail.append(this.describe(i).split("\n").slice(0, -1).join("; "));
      const list = (title, items) => {
        if (!items.length) return;
        detail.append(element("br"), title);
        items.slice(0, 12).forEach((d) => detail.append(" ",
          button(this.title(d), () => { this.show(d); this.choose(d); })));
        if (items.length > 12) detail.append(` and ${items.length - 12} more`);
      };
      list("waited last for:", this.cause[i] >= 0 ? [this.cause[i]] : []);
      list("waits for:", this.waits(i));
      list("is waited for by:", [...this.next.subarray(this.nextFirst[i], this.nextFirst[i + 1])]);
    }
    this.redraw();
  }
  show(i) {
    if (this.start[i] >= this.from && this.end[i] <= this.to) return;
    const half = (this.to - this.from) / 2, middle = (this.start[i] + this.end[i]) / 2;
    this.range(middle - half, middle + half);
  }

  listen() {
    const canvas = this.canvas, tip = byId("tip");
    let drag = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const span = this.to - this.from;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = span * (event.deltaX || event.deltaY) / 1000;
        this.range(this.from + by, this.to + by);
      } else this.zoom(Math.exp(event.deltaY / 400), place(event)[0]);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      drag = { x: place(event)[0], from: this.from, to: this.to, moved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (drag) {
        const by = (drag.x - x) / (this.width - GUTTER) * (drag.to - drag.from);
        drag.moved ||= Math.abs(drag.x - x) > 3;
        if (drag.moved) this.range(drag.from + by, drag.to + by);
      }
      const i = drag?.moved ? -1 : this.at(x, y);
      tip.hidden = i < 0;
      if (i >= 0) {
        tip.textContent = this.describe(i);
        tip.style.left = `${Math.min(x + 14, this.width - tip.offsetWidth - 4)}px`;
        tip.style.top = `${y + 16}px`;
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.choose(this.at(...place(event)));
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("keydown", (event) => {
      const span = this.to - this.from;
      const keys = { "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6),
        0: () => this.fit(), Escape: () => this.choose(-1),
        ArrowLeft: () => this.range(this.from - span / 5, this.to - span / 5),
        ArrowRight: () => this.range(this.from + span / 5, this.to + span / 5) };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    byId("in").addEventListener("click", () => this.zoom(0.6));
    byId("out").addEventListener("click", () => this.zoom(1 / 0.6));
    byId("fit").addEventListener("click", () => this.fit());
    byId("find").addEventListener("input", (event) => this.search(event.target.value));
    window.addEventListener("resize", () => this.redraw());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }
}

async function main() {
  showSummary();
  const columns = {};
  for (const [name, column] of Object.entries(known.columns)) {
    if (name !== "count") columns[name] = await unpacked(column);
  }
  const charts = [];
  for (const chart of known.charts) {
    const made = { ...chart, time: await unpacked(chart.time), value: await unpacked(chart.value) };
    made.most = made.value.reduce((a, b) => Math.max(a, b), made.limit) || 1;
    charts.push(made);
  }
  const view = new View(columns, charts);
  showTables(view);
  view.draw();
  // What a test without eyes looks at; "#at=N" chooses an instruction.
  const at = /^#at=(\d+)$/.exec(location.hash);
  if (at && Number(at[1]) < view.count) {
    const i = Number(at[1]), span = Math.max(4 * (view.end[i] - view.start[i]), view.total / 40);
    view.range(view.start[i] - span, view.end[i] + span);
    view.choose(i);
    view.draw();
  }
  Object.assign(document.body.dataset, { ready: "yes", drawn: view.drawn, instructions: view.count });
}

main().catch((error) => {
  byId("headline").textContent = `This browser cannot show the page: ${error}`;
  document.body.dataset.ready = "no";
});
