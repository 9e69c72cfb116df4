"use strict";
// Draws the pictures of a page. Its data stand in the element "data"; nothing in them is run or parsed as markup.
(() => {
  document.documentElement.classList.add("drawing");
  // Bokeh makes its style elements as it goes: the page's policy lets through those that bear its nonce.
  const nonce = document.currentScript.dataset.styleNonce;
  const createElement = Document.prototype.createElement;
  Document.prototype.createElement = function (name, options) {
    const element = createElement.call(this, name, options);
    if (String(name).toLowerCase() === "style") element.nonce = nonce;
    return element;
  };

  const ROW = 18; // pixels of a module's row
  const MOST_ROWS = 30; // on the screen at one time
  const FIRST_ROWS = 40; // unfolded at first
  const NEAR_BITS = 24; // a limit further away than this is named and not drawn
  const AHEAD = 0.15; // of the batches in view: so far at most the fit goes on beyond the last
  const MOST_CHOSEN = 12; // curves at first
  const MOST_POINTS = 150; // of a curve: beyond, they are small
  const MOST_MARKS = 400; // steps and gaps: beyond, they are only counted
  const FORWARD = ["weight", "buffer", "input", "output", "value"];
  const NOTHING = { x: [], y: [] };
  // low: whether the low end of the scale is the one to look at; least: what the scale reaches at least; show: a figure.
  const METRICS = {
    headroom: { title: "headroom: doublings left before the limit", low: true, least: 1, show: (v) => (v === -Infinity ? "no headroom: it has inf" : `headroom ${v.toFixed(2)} bits`) },
    growth: { title: "growth: doublings a batch", show: (v) => `growth ${v < 0 ? "" : "+"}${v.toFixed(3)} bits a batch` },
    zero: { title: "share of elements that are 0", share: true, show: (v) => `${percent(v)} are 0` },
    subnormal: { title: "share of elements that are subnormal", share: true, show: (v) => `${percent(v)} are subnormal` },
    nan: { title: "nan in one tensor, log2(1 + count)", show: (v) => `${Math.round(2 ** v - 1)} nan` },
    inf: { title: "inf in one tensor, log2(1 + count)", show: (v) => `${Math.round(2 ** v - 1)} inf` },
    epsilons: { title: "largest difference, log2(1 + epsilons of the coarser dtype)", least: 4, show: (v) => (v === 0 ? "equal bit for bit" : `differs by ${(2 ** v - 1).toPrecision(3)} epsilons`) },
  };

  const dom = (id) => document.getElementById(id);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  const signed = (value) => `${value < 0 ? "" : "+"}${value.toFixed(3)}`;
  const batches = (first, last) => (first === last ? `batch ${first}` : `batches ${first} to ${last}`);
  const figure = (log2) => (log2 === -Infinity ? "0" : (2 ** log2).toExponential(2).replace(/e([+-])(\d)$/, "e$10$2"));
  const called = (module) => module || "(root)";
  const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);
  const element = (name, properties, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // ---- reading the data ----

  async function unpack(packed) {
    if (packed == null) return null;
    const bytes = Uint8Array.from(atob(packed.data), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const columns = new Uint8Array(await new Response(stream).arrayBuffer());
    const count = columns.length / 4;
    const rows = new Uint8Array(columns.length);
    for (let at = 0; at < count; at++) for (let byte = 0; byte < 4; byte++) rows[4 * at + byte] = columns[byte * count + at];
    return new Float32Array(rows.buffer);
  }

  // What is recorded at one resolution. Positions count recorded batches from 0; a bin holds the same number of them.
  async function readLevel(packed, total) {
    const planes = {};
    for (const [name, plane] of Object.entries(packed.planes)) planes[name] = await unpack(plane);
    const { first, last, count, optimizer_step: step } = packed;
    return { first, last, step, planes, bins: first.length, width: count[0], start: total - sum(count) };
  }

  async function readRun(packed) {
    const total = sum(packed.levels[0].count);
    const levels = [];
    for (const level of packed.levels) levels.push(await readLevel(level, total));
    const tensors = packed.tensors.map(([module, role, context, dtype]) => ({
      module: packed.modules[module], role: packed.roles[role], context, dtype: packed.dtypes[dtype],
    }));
    const strip = packed.strip && { ...packed.strip, headroom: await unpack(packed.strip.headroom), nonfinite: await unpack(packed.strip.nonfinite) };
    return { ...packed, total, levels, tensors, strip, fits: new Map(packed.fits) };
  }

  const levelAt = (run, position) => run.levels.findLast((level) => position >= level.start);
  const binAt = (level, position) => Math.max(0, Math.min(level.bins - 1, Math.floor((position - level.start) / level.width)));
  const labelAt = (run, position) => String(levelAt(run, position).first[binAt(levelAt(run, position), position)]);

  // Where among a run's recorded batches a batch lies.
  function positionOf(run, batch) {
    const level = run.levels.findLast((one) => batch >= one.first[0]) || run.levels[0];
    const bin = Math.max(0, level.first.findLastIndex((one) => one <= batch));
    const inside = (batch - level.first[bin]) / (level.last[bin] - level.first[bin] + 1);
    return level.start + (bin + Math.max(0, inside)) * level.width + 0.5;
  }

  // ---- modules as a tree ----

  function readTree(tensors) {
    const root = { name: "", label: "(root)", depth: 0, children: [], tensors: [], byPart: new Map() };
    tensors.forEach((tensor, at) => {
      let node = root;
      const parts = tensor.module === "" ? [] : tensor.module.split(".");
      parts.forEach((label, depth) => {
        if (!node.byPart.has(label)) {
          const name = parts.slice(0, depth + 1).join(".");
          const child = { name, label, depth: depth + 1, children: [], tensors: [], byPart: new Map(), parent: node };
          node.byPart.set(label, child);
          node.children.push(child);
        }
        node = node.byPart.get(label);
      });
      node.tensors.push(at);
    });
    const gather = (node) => (node.all = node.tensors.concat(...node.children.map(gather)));
    gather(root);
    return root;
  }

  function unfoldedAtFirst(root, guilty) {
    const open = new Set([root]);
    let rows = 1 + root.children.length;
    for (let level = root.children; level.length; level = level.flatMap((node) => node.children)) {
      rows += sum(level.map((node) => node.children.length));
      if (rows > FIRST_ROWS) break;
      level.forEach((node) => open.add(node));
    }
    for (let node = guilty?.parent; node; node = node.parent) open.add(node);
    return open;
  }

  function rowsOf(node, open, rows = []) {
    rows.push(node);
    if (open.has(node)) node.children.forEach((child) => rowsOf(child, open, rows));
    return rows;
  }

  // ---- cells ----

  // How much there is to look at in each tensor's bins: the more, the stronger. Computed once for a level.
  function strengths(run, level, metric) {
    const { log2, inf, [metric]: plane } = level.planes;
    const { bins, last } = level;
    if (level.strengths?.metric === metric) return level.strengths.values;
    const values = new Float32Array(run.tensors.length * bins).fill(NaN);
    run.tensors.forEach(({ dtype }, tensor) => {
      for (let bin = 0, at = tensor * bins; bin < bins; bin++, at++) {
        if (metric === "headroom") values[at] = inf?.[at] > 0 ? Infinity : log2[at] - (dtype.limit ?? NaN);
        else if (metric === "growth") {
          const grown = bin ? (log2[at] - log2[at - 1]) / (last[bin] - last[bin - 1]) : NaN;
          values[at] = Number.isFinite(grown) ? grown : NaN;
        } else if (plane) values[at] = METRICS[metric].share ? plane[at] : Math.log2(1 + plane[at]);
      }
    });
    level.strengths = { metric, values };
    return values;
  }

  const kindOf = (nan, inf, apart) => (apart ? "≠" : nan && inf ? "N∞" : nan ? "N" : inf ? "∞" : "");

  // Each row's strongest tensor in each column, with its bin; one that is not finite is stronger than any.
  function cellsOf(run, rows, level, metric, roles, from, to, step) {
    const columns = Math.ceil((to - from) / step);
    const size = rows.length * columns;
    const cells = { columns, tensor: new Int32Array(size).fill(-1), bin: new Int32Array(size), value: new Float32Array(size).fill(NaN), nan: new Float64Array(size), inf: new Float64Array(size), apart: new Float64Array(size) };
    const { nan, inf, apart } = level.planes;
    const values = strengths(run, level, metric);
    rows.forEach((row, y) => {
      for (const tensor of row.all) {
        if (!roles.has(run.tensors[tensor].role)) continue;
        for (let bin = from, at = tensor * level.bins + from; bin < to; bin++, at++) {
          const cell = y * columns + Math.floor((bin - from) / step);
          const value = values[at];
          const wrong = (nan?.[at] || 0) + (inf?.[at] || 0) + (apart?.[at] || 0);
          const known = cells.nan[cell] + cells.inf[cell] + cells.apart[cell];
          if (wrong > known || (wrong === known && !(value <= cells.value[cell]) && (value === value || wrong))) {
            cells.tensor[cell] = tensor;
            cells.bin[cell] = bin;
          }
          if (value > cells.value[cell] || (value === value && cells.value[cell] !== cells.value[cell])) cells.value[cell] = value;
          if (nan?.[at] > cells.nan[cell]) cells.nan[cell] = nan[at];
          if (inf?.[at] > cells.inf[cell]) cells.inf[cell] = inf[at];
          if (apart?.[at] > cells.apart[cell]) cells.apart[cell] = apart[at];
        }
      }
    });
    return cells;
  }

  // Neighbouring cells of a row that are not finite in the same way become one hatched field with one mark.
  function fieldsOf(rows, columns, kindAt) {
    const fields = [];
    for (let y = 0; y < rows; y++) {
      for (let x = 0; x < columns; ) {
        const kind = kindAt(y * columns + x);
        let stop = x + 1;
        while (stop < columns && kindAt(y * columns + stop) === kind) stop++;
        if (kind) fields.push({ y, rows: 1, from: x, to: stop, kind });
        x = stop;
      }
    }
    return fields;
  }

  // Fields of the same batches in neighbouring rows become one.
  function joined(fields) {
    const last = new Map();
    return fields.filter((one) => {
      const key = `${one.from} ${one.to} ${one.kind}`;
      const above = last.get(key);
      if (above && above.y + above.rows === one.y) return void above.rows++;
      last.set(key, one);
      return true;
    });
  }

  function drawCells({ sources, NDArray }, image, rows, columns, x, dx, y, fields, marked) {
    sources.cells.data = { image: [new NDArray(image.buffer, [rows, columns])], x: [x], y: [y], dw: [columns * dx], dh: [rows] };
    sources.nonfinite.data = {
      left: fields.map((one) => x + one.from * dx), right: fields.map((one) => x + one.to * dx),
      top: fields.map((one) => y + one.y), bottom: fields.map((one) => y + one.y + one.rows),
      hatch: fields.map((one) => (one.kind === "∞" ? "/" : "x")),
    };
    const marks = marked ? fields : [];
    sources.marks.data = { x: marks.map((one) => x + ((one.from + one.to) / 2) * dx), y: marks.map((one) => y + one.y + 0.5), text: marks.map((one) => one.kind) };
  }

  const axesOf = (plot, side) => plot[side].filter((one) => one.type.endsWith("Axis"));

  function label(plot, side, ticks, labelOf) {
    for (const one of axesOf(plot, side)) {
      one.ticker.ticks = ticks;
      one.major_label_overrides = new Map(ticks.map((tick) => [tick, labelOf(tick)]));
    }
  }

  function labelBatches(view, run, from, to) {
    const least = (to - from) / Math.max(2, (view.element.clientWidth || 600) / 90);
    const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
    const step = Math.max(1, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least));
    const ticks = [];
    for (let at = Math.ceil(from / step) * step; at < to; at += step) ticks.push(at + 0.5);
    label(view.plot, "below", ticks, (tick) => labelAt(run, tick));
  }

  // ---- the page ----

  async function start() {
    const data = JSON.parse(dom("data").textContent);
    const views = {};
    for (const item of data.figures) {
      const plot = [...(await Bokeh.embed.embed_item(item))][0].model;
      const sources = Object.fromEntries(plot.renderers.map((one) => [one.data_source.name, one.data_source]));
      views[item.target_id] = { plot, sources, element: dom(item.target_id), NDArray: sources.cells?.data.image[0].constructor };
    }
    const runs = [];
    for (const packed of data.runs) runs.push(await readRun(packed));
    window.overflow = draw(data, runs, data.differences ? await readRun(data.differences) : runs[0], views);
    document.documentElement.dataset.ready = "true";
  }

  // subject: what the heat map shows, a run or the differences of two.
  function draw(data, runs, subject, views) {
    const compares = runs.length > 1;
    const root = readTree(subject.tensors);
    const nodes = new Map();
    (function index(node) { nodes.set(node.name, node); node.children.forEach(index); })(root);
    const renamed = new Map(data.renamed);
    const guilty = nodes.get(data.guilty);
    const open = unfoldedAtFirst(root, guilty);
    const all = new Set(subject.tensors.map((tensor) => tensor.role));
    const state = {
      from: 0, to: subject.total, metric: compares ? "epsilons" : "headroom", roles: compares ? all : new Set(FORWARD),
      rows: [], top: 0, cursor: null, cells: null, module: null, entries: [], chosen: new Set(),
    };

    // -- which batches --

    function look(from, to) {
      const width = Math.min(subject.total, Math.max(1, to - from));
      state.from = Math.max(0, Math.min(subject.total - width, from));
      state.to = state.from + width;
      drawHeat();
      drawCurves();
      drawRanks();
    }
    function zoom(factor, centre = (state.from + state.to) / 2) {
      const half = Math.max(0.5, ((state.to - state.from) * factor) / 2);
      look(centre - half, centre + half);
    }
    const move = (share) => look(state.from + (state.to - state.from) * share, state.to + (state.to - state.from) * share);
    dom("zoom-in").onclick = () => zoom(0.5);
    dom("zoom-out").onclick = () => zoom(2);
    dom("earlier").onclick = () => move(-0.5);
    dom("later").onclick = () => move(0.5);
    dom("all").onclick = () => look(0, subject.total);
    function show(view, to = state.to) {
      view.shown = [state.from, to];
      view.plot.x_range.setv({ start: state.from, end: to });
    }
    for (const view of Object.values(views)) {
      view.plot.x_range.change.connect(() => {
        const { start: from, end: to } = view.plot.x_range; // a drag has set the range of one picture: all follow
        if (view.shown && Math.abs(from - view.shown[0]) + Math.abs(to - view.shown[1]) > 1e-6) look(from, to);
      });
      view.element.ondblclick = () => look(0, subject.total);
    }

    // -- the modules' names --

    function toggle(node) {
      if (!open.delete(node)) open.add(node);
      drawTree();
    }
    function nameRow(node) {
      const isOpen = open.has(node);
      const folds = node.children.length > 0 && node !== root;
      const fold = folds ? element("button", { className: "toggle", textContent: isOpen ? "▾" : "▸", onclick: () => toggle(node) }) : element("span", { className: "toggle" });
      if (folds) {
        fold.setAttribute("aria-expanded", isOpen);
        fold.setAttribute("aria-label", `${isOpen ? "fold" : "unfold"} ${node.name}`);
        fold.dataset.node = node.name;
      }
      const name = element("button", { className: "name", textContent: node.label, title: called(node.name), onclick: () => choose(node, true) });
      const row = element("div", { className: node === guilty ? "row guilty" : "row" }, fold, name);
      row.style.setProperty("--depth", node.depth);
      return row;
    }
    function drawTree() {
      state.rows = rowsOf(root, open);
      if (!root.tensors.length && root.children.length) state.rows.shift();
      const list = dom("rows");
      const focused = document.activeElement?.dataset.node;
      list.replaceChildren(...state.rows.map(nameRow));
      if (focused != null) [...list.querySelectorAll("[data-node]")].find((one) => one.dataset.node === focused)?.focus();
      const shown = Math.min(state.rows.length, MOST_ROWS);
      list.style.setProperty("height", `${shown * ROW}px`);
      views.heat.plot.frame_height = shown * ROW;
      drawHeat();
    }
    dom("fold").onclick = () => { open.clear(); open.add(root); drawTree(); };
    dom("unfold").onclick = () => { nodes.forEach((node) => open.add(node)); drawTree(); };
    dom("rows").onscroll = () => drawHeat();
    views.heat.element.addEventListener("wheel", (event) => {
      const list = dom("rows");
      if (list.scrollHeight <= list.clientHeight || event.ctrlKey) return;
      list.scrollTop += event.deltaY;
      event.preventDefault();
    }, { passive: false });

    // -- the heat map --

    for (const role of compares ? [] : all) dom("role").append(new Option(role, role));
    if (!compares) {
      for (const option of dom("metric").options) option.disabled = !["headroom", "growth"].includes(option.value) && !subject.levels.some((level) => level.planes[option.value]);
      dom("metric").onchange = () => { state.metric = dom("metric").value; dress(); drawHeat(); };
      dom("role").onchange = () => { state.roles = new Set(dom("role").value ? [dom("role").value] : FORWARD); drawHeat(); };
    }

    function drawHeat() {
      const { plot, element: holder } = views.heat;
      const metric = METRICS[state.metric];
      const shown = Math.min(state.rows.length, MOST_ROWS);
      const scrolled = dom("rows").scrollTop / ROW;
      state.top = Math.floor(scrolled);
      const rows = state.rows.slice(state.top, state.top + shown + 1);
      const level = levelAt(subject, state.from);
      const from = binAt(level, state.from);
      const to = binAt(level, Math.ceil(state.to) - 1) + 1;
      const step = Math.max(1, Math.ceil((to - from) / Math.max(50, Math.floor((holder.clientWidth || 600) / 2))));
      const cells = cellsOf(subject, rows, level, state.metric, state.roles, from, to, step);
      state.cells = { ...cells, level, from, to, step, rows };
      const image = metric.low ? cells.value.map((value) => -value) : cells.value.slice();
      // Bits of float32 are no scale for those of float16: what is held against a wider format does not stretch it.
      const limits = Array.from(cells.tensor, (one) => subject.tensors[one]?.dtype.limit ?? Infinity);
      const narrowest = metric.low ? Math.min(...new Set(limits)) : Infinity;
      const finite = image.filter((value, at) => Number.isFinite(value) && (!metric.low || limits[at] === narrowest));
      const high = metric.share ? 1 : finite.reduce((most, one) => Math.max(most, one), metric.least ?? 1e-3);
      const mapper = plot.renderers[0].glyph.color_mapper;
      mapper.setv({ low: 0, high: metric.low ? Math.ceil(high) : high });
      image.forEach((value, at) => { if (!Number.isNaN(value)) image[at] = Math.max(mapper.low, Math.min(mapper.high, value)); });
      const dx = step * level.width;
      const fields = fieldsOf(rows.length, cells.columns, (at) => kindOf(cells.nan[at], cells.inf[at], cells.apart[at]));
      drawCells(views.heat, image, rows.length, cells.columns, level.start + from * level.width, dx, state.top, fields, true);
      plot.y_range.setv({ start: scrolled + shown, end: scrolled });
      show(views.heat);
      labelBatches(views.heat, subject, state.from, state.to);
      dom("heat-title").textContent = metric.title;
      dom("resolution").textContent = dx > 1 ? `a column holds up to ${dx} recorded batches: their strongest` : "a column is a recorded batch";
      if (state.cursor) showCell(state.cursor.y, state.cursor.x);
    }

    function showCell(y, x) {
      const { cells } = state;
      const { level, from, step, to, columns } = cells;
      const row = cells.rows[y - state.top];
      const column = Math.floor((x - level.start - from * level.width) / (step * level.width));
      if (!row || column < 0 || column >= columns) return hideCell();
      const at = (y - state.top) * columns + column;
      const [first, stop] = [from + column * step, Math.min(to, from + (column + 1) * step)];
      const lines = [`${called(row.name)}, ${batches(level.first[first], level.last[stop - 1])}`];
      if (cells.tensor[at] < 0) lines.push(compares ? "not compared" : "not recorded");
      else lines.push(...describe(level, cells.tensor[at], cells.bin[at], cells.apart[at]));
      state.cursor = { x, y };
      views.heat.sources.cursor.data = { left: [level.start + first * level.width], right: [level.start + stop * level.width], top: [y], bottom: [y + 1] };
      dom("figures").replaceChildren(...lines.map((textContent, number) => element("div", { textContent, className: number ? "" : "where" })));
    }
    function describe(level, number, bin, apart) {
      const { module, context, role, dtype } = subject.tensors[number];
      const at = number * level.bins + bin;
      const value = strengths(subject, level, state.metric)[at] * (METRICS[state.metric].low ? -1 : 1);
      const lines = Number.isNaN(value) ? [] : [METRICS[state.metric].show(value)];
      if (compares) return [...lines, ...(apart ? ["an inf or nan in one run alone"] : []), `in ${called(module)}, ${batches(level.first[bin], level.last[bin])}`];
      const [nan, inf] = [level.planes.nan?.[at] || 0, level.planes.inf?.[at] || 0];
      if (nan || inf) lines.push([nan && `${nan} nan`, inf && `${inf} inf`].filter(Boolean).join(", "));
      lines.push(`${context} of ${called(module)} (${role}${dtype.name && `, ${dtype.name}`})`);
      const log2 = level.planes.log2[at];
      const share = dtype.limit == null ? "" : `, ${percent(2 ** (log2 - dtype.limit))} of ${dtype.name}'s limit`;
      const when = level.first[bin] === level.last[bin] ? "" : `, in ${batches(level.first[bin], level.last[bin])}`;
      return [...lines, Number.isNaN(log2) ? `no finite figure${when}` : `largest finite ${figure(log2)}${share}${when}`];
    }
    function hideCell() {
      state.cursor = null;
      views.heat.sources.cursor.data = { left: [], right: [], top: [], bottom: [] };
      dom("figures").replaceChildren(element("div", { className: "hint", textContent: "Point at a cell, or move to one with the arrow keys, to read its figures." }));
    }
    views.heat.plot.on_event("mousemove", (event) => showCell(Math.floor(event.y), event.x));
    views.heat.plot.on_event("tap", (event) => choose(state.rows[Math.floor(event.y)], false));
    dom("heat-frame").onkeydown = (event) => {
      const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (arrow) {
        const dx = state.cells.step * state.cells.level.width;
        const { x, y } = state.cursor || { x: state.to - dx / 2 - arrow[0] * dx, y: state.top - arrow[1] };
        moveTo(Math.max(0, Math.min(state.rows.length - 1, y + arrow[1])), Math.max(state.from + 0.01, Math.min(state.to - 0.01, x + arrow[0] * dx)));
      } else if (event.key === "Enter" && state.cursor) choose(state.rows[state.cursor.y], true);
      else if (event.key === "+" || event.key === "=") zoom(0.5, state.cursor?.x);
      else if (event.key === "-") zoom(2, state.cursor?.x);
      else if (event.key === "0") look(0, subject.total);
      else return;
      event.preventDefault();
    };
    function moveTo(y, x) {
      const list = dom("rows");
      if (y < state.top) list.scrollTop = y * ROW;
      if (y >= state.top + MOST_ROWS) list.scrollTop = (y - MOST_ROWS + 1) * ROW;
      state.cursor = { x, y };
      drawHeat();
    }

    // -- curves: an entry is one tensor of the chosen module, in each run that has it --

    function choose(node, jump) {
      let found = node;
      while (found && !found.tensors.length && found.children.length) [found] = found.children;
      if (!found) return;
      state.module = found;
      const entries = new Map();
      runs.forEach((run, side) => {
        const name = side ? renamed.get(found.name) ?? found.name : found.name;
        run.tensors.forEach((tensor, number) => {
          if (tensor.module !== name) return;
          const { context, role, dtype } = tensor;
          const key = JSON.stringify([role, context]);
          if (!entries.has(key)) entries.set(key, { role, label: `${context} (${role}${!compares && dtype.name ? `, ${dtype.name}` : ""})`, members: [] });
          entries.get(key).members.push({ run, side, tensor: number });
        });
      });
      state.entries = [...entries.values()];
      const main = state.entries.filter((entry) => entry.role !== "buffer");
      state.chosen = new Set((main.length ? main : state.entries).slice(0, MOST_CHOSEN));
      drawChoice();
      drawCurves();
      if (jump) dom("curve").scrollIntoView({ block: "start" });
    }
    function swatch(at) {
      const made = element("span", { className: "swatch" });
      made.style.setProperty("--colour", `var(--line-${at % 8})`);
      return made;
    }
    function drawChoice() {
      dom("curves-title").textContent = `Curves of ${state.module.name || "the root module"}`;
      dom("choice").replaceChildren(...state.entries.map((entry, at) => {
        const box = element("input", { type: "checkbox", checked: state.chosen.has(entry) });
        box.onchange = () => { if (!state.chosen.delete(entry)) state.chosen.add(entry); drawCurves(); };
        return element("label", {}, box, swatch(at), entry.label);
      }));
    }

    // The bins of a run in view, the last batches one by one, with where they lie among the subject's batches.
    function binsInView(run) {
      const finest = run.levels[run.levels.length - 1];
      const levels = run === runs[0] && levelAt(run, state.from) === finest ? [finest] : run.levels;
      const found = [];
      for (const level of levels) {
        for (let bin = 0; bin < level.bins; bin++) {
          const from = level.start + bin * level.width;
          if (level !== finest && from + level.width > finest.start) continue;
          const x = run === runs[0] ? from + level.width / 2 : positionOf(runs[0], (level.first[bin] + level.last[bin]) / 2 - data.offset);
          if (x > state.from && x < state.to) found.push({ x, bin, level });
        }
      }
      return found;
    }

    // curves: {run, tensor, label, colour, side} each.
    function trace(curves) {
      const lines = { xs: [], ys: [], color: [], dash: [], label: [] };
      const points = { x: [], y: [], color: [], marker: [], label: [], batch: [], value: [] };
      const marks = { x: [], text: [] };
      const bins = new Map(runs.map((run) => [run, binsInView(run)]));
      let [low, high] = [Infinity, -Infinity];
      curves.forEach(({ run, tensor, label: text, colour, side }, number) => {
        const [xs, ys] = [[], []];
        for (const { x, bin, level } of bins.get(run)) {
          const at = tensor * level.bins + bin;
          const log2 = level.planes.log2[at];
          const kind = kindOf(level.planes.nan?.[at] > 0, level.planes.inf?.[at] > 0);
          if (kind) { marks.x.push(x); marks.text.push(kind); }
          xs.push(x);
          ys.push(Number.isFinite(log2) ? 2 ** log2 : NaN);
          if (!Number.isFinite(log2)) continue;
          [low, high] = [Math.min(low, log2), Math.max(high, log2)];
          points.x.push(x); points.y.push(2 ** log2); points.color.push(colour); points.label.push(text);
          points.marker.push(["circle", "square", "triangle", "diamond"][number % 4]);
          points.batch.push(batches(level.first[bin], level.last[bin]).replace(/^\w+ /, "")); points.value.push(figure(log2));
        }
        lines.xs.push(xs); lines.ys.push(ys); lines.color.push(colour); lines.label.push(text);
        lines.dash.push(side || number >= 8 ? "dashed" : "solid");
      });
      return { lines, points, marks, low, high, bins: bins.get(runs[0]) };
    }

    // ahead: how far beyond the last batch there is room.
    function fill(view, { lines, points, marks, low, high, bins }, limits, fit, steps, ahead) {
      const { plot, sources } = view;
      if (low > high) [low, high] = [-1, 1];
      const near = limits.filter(({ log2 }) => log2 <= high + NEAR_BITS && log2 >= low - NEAR_BITS);
      [low, high] = [Math.min(low, ...near.map(({ log2 }) => log2)), Math.max(high, ...near.map(({ log2 }) => log2))];
      const margin = Math.max(1, (high - low) * 0.12);
      plot.y_range.setv({ start: 2 ** Math.max(-1070, low - margin), end: 2 ** Math.min(1023, high + margin) });
      show(view, state.to + ahead);
      labelBatches(view, runs[0], state.from, state.to);
      const gaps = bins.filter(({ bin, level }, at) => at && level.first[bin] > bins[at - 1].level.last[bins[at - 1].bin] + 1);
      sources.lines.data = lines;
      sources.points.data = points;
      plot.renderers.find((one) => one.name === "points").glyph.size = { value: bins.length > MOST_POINTS ? 2 : 5 };
      sources.gaps.data = { x: gaps.length > MOST_MARKS ? [] : gaps.map(({ x, level }) => x - level.width / 2) };
      sources.limits.data = { y: near.map(({ log2 }) => 2 ** log2) };
      sources.limit_names.data = { x: near.map(() => state.from), y: near.map(({ log2 }) => 2 ** log2), text: near.map(({ name }) => name) };
      sources.marks.data = { ...marks, y: marks.x.map(() => plot.y_range.end) };
      sources.fit.data = fit;
      sources.steps.data = { x: steps, y: steps.map(() => plot.y_range.start) };
      return gaps.length;
    }

    const coloured = (at) => style(`--line-${at % 8}`);
    const side = (number) => (compares ? `${"AB"[number]}: ` : "");
    const limitOf = ({ run, tensor }) => run.tensors[tensor].dtype;

    function drawCurves() {
      if (!state.module) return;
      const chosen = state.entries.filter((entry) => state.chosen.has(entry));
      const curves = chosen.flatMap((entry) => entry.members.map((member) => ({ ...member, label: side(member.side) + entry.label, colour: coloured(state.entries.indexOf(entry)) })));
      const dtypes = [...new Map(curves.map(limitOf).filter((dtype) => dtype.limit != null).map((dtype) => [dtype.name, dtype])).values()];
      const limits = dtypes.flatMap(({ name, limit, normal }) => [
        { log2: limit, name: `${name} max ${figure(limit)}` }, { log2: normal, name: `${name} smallest normal ${figure(normal)}` },
      ]);
      const traced = trace(curves);
      const fitted = compares ? undefined : runs[0].fits.get(state.module.name);
      const limit = Math.max(...dtypes.map((dtype) => dtype.limit));
      const left = fitted && dtypes.length && fitted[2] > 0 ? Math.max(0, -fitted[3] / fitted[2]) : 0;
      const ahead = state.to === subject.total ? Math.min(left, AHEAD * (state.to - state.from)) : 0;
      const gaps = fill(views.curves, traced, limits, fitted && dtypes.length ? fitLine(fitted, limit, ahead) : NOTHING, [], ahead);
      const notes = dtypes.filter((dtype) => dtype.limit > traced.high + NEAR_BITS).map((dtype) => `${dtype.name}'s limit ${figure(dtype.limit)} is ${(dtype.limit - traced.high).toFixed(0)} bits above`);
      if (fitted) notes.unshift(`fit (dash-dotted), as top extrapolates it: ${signed(fitted[2])} bits a batch over batches ${fitted[0]} to ${fitted[1]}${fitted[2] > 0 ? `; at this rate the limit is ${Math.max(0, -fitted[3] / fitted[2]).toPrecision(3)} batches away` : ""}`);
      if (gaps) notes.push(`${gaps} ${gaps === 1 ? "gap" : "gaps"} between recorded batches${gaps > MOST_MARKS ? "" : " (dotted)"}`);
      if (compares) notes.push("A is solid, B dashed");
      dom("curves-note").textContent = notes.join("; ");
      drawValues(ahead);
    }
    // Through the last figure, from which the batches left are counted, and on towards the limit.
    function fitLine([first, last, growth, share], limit, ahead) {
      const end = positionOf(runs[0], last);
      return { x: [positionOf(runs[0], first), end + ahead], y: [2 ** (limit + share - growth * (last - first)), 2 ** (limit + share + growth * ahead)] };
    }
    function drawValues(ahead) {
      const names = [];
      const curves = runs.flatMap((run, number) => run.tensors.flatMap(({ role, module, context }, tensor) => {
        if (role !== "value") return [];
        const name = `${module} ${context}`.replace(/^(\S+) \1$/, "$1");
        if (!names.includes(name)) names.push(name);
        return [{ run, tensor, side: number, label: side(number) + name, colour: coloured(names.indexOf(name)) }];
      }));
      const traced = trace(curves);
      const stepped = traced.bins.filter(({ bin, level }, at) => at && level.step[bin] > traced.bins[at - 1].level.step[traced.bins[at - 1].bin]);
      const { plot } = views.values;
      plot.frame_height = curves.length ? 120 : 14;
      for (const one of [...axesOf(plot, "left"), ...axesOf(plot, "below")]) one.visible = curves.length > 0;
      for (const one of plot.center) if (one.type === "Grid" && one.dimension === 1) one.visible = curves.length > 0;
      fill(views.values, traced, [], NOTHING, stepped.length > MOST_MARKS ? [] : stepped.map(({ x }) => x), ahead);
      const known = traced.bins.map(({ bin, level }) => level.step[bin]).filter((step) => step >= 0);
      const steps = known.length ? known[known.length - 1] - known[0] : 0;
      const rose = steps && stepped.length <= MOST_MARKS ? ", marked at the bottom where the number rose" : "";
      const legend = names.flatMap((name, at) => [swatch(at), `${name}; `]);
      dom("values-note").replaceChildren(...legend, `${names.length ? "" : "no value was recorded; "}${steps} optimizer steps in view${rose}`);
    }

    // -- ranks --

    function drawRanks() {
      const { strip } = runs[0];
      if (!strip || !views.ranks) return;
      const view = views.ranks;
      const [rows, bins] = [strip.ranks.length, strip.first.length];
      const height = Math.max(40, Math.min(512, rows * 16));
      view.plot.frame_height = height;
      const mapper = view.plot.renderers[0].glyph.color_mapper;
      mapper.setv({ low: 0, high: Math.ceil(strip.headroom.filter(Number.isFinite).reduce((most, one) => Math.max(most, one), 1)) });
      const image = strip.headroom.map((value) => (Number.isNaN(value) ? NaN : Math.max(0, Math.min(mapper.high, value))));
      drawCells(view, image, rows, bins, 0, strip.width, 0, joined(fieldsOf(rows, bins, (at) => (strip.nonfinite[at] > 0 ? "N" : ""))), false);
      view.plot.y_range.setv({ start: rows, end: 0 });
      show(view);
      labelBatches(view, runs[0], state.from, state.to);
      const every = Math.ceil(rows / Math.floor(height / 16));
      label(view.plot, "left", strip.ranks.flatMap((_, at) => (at % every ? [] : [at + 0.5])), (tick) => String(strip.ranks[Math.floor(tick)]));
      const earliest = Math.min(...strip.starts.map(([, batch]) => batch));
      const firsts = strip.starts.filter(([, batch]) => batch === earliest).map(([rank, batch]) => [strip.ranks.indexOf(rank), strip.first.findLastIndex((one) => one <= batch)]).filter(([at, bin]) => at >= 0 && bin >= 0);
      view.sources.firsts.data = { x: firsts.map(([, bin]) => (bin + 0.5) * strip.width), y: firsts.map(([at]) => at + 0.5) };
    }
    views.ranks?.plot.on_event("mousemove", ({ x, y }) => {
      const { strip } = runs[0];
      const [at, bin] = [Math.floor(y), Math.floor(x / strip.width)];
      if (!(at in strip.ranks && bin in strip.first)) return;
      const cell = at * strip.first.length + bin;
      const headroom = Number.isNaN(strip.headroom[cell]) ? "no headroom recorded" : `least headroom ${strip.headroom[cell].toFixed(2)} bits`;
      const wrong = strip.nonfinite[cell] > 0 ? `, up to ${strip.nonfinite[cell]} non-finite elements in a tensor` : "";
      dom("rank-figures").textContent = `rank ${strip.ranks[at]}, ${batches(strip.first[bin], strip.last[bin])}: ${headroom}${wrong}`;
    });

    // -- colours --

    function dress() {
      const [ink, faint, paper, strong] = ["--ink", "--line", "--paper", "--mark"].map(style);
      const palette = data.palettes[style("--scheme")];
      const looks = {
        nonfinite: { fill_color: paper, hatch_color: strong, line_color: strong }, cursor: { line_color: ink },
        marks: { text_color: ink, background_fill_color: paper }, limit_names: { text_color: ink },
        firsts: { fill_color: paper, line_color: ink }, gaps: { line_color: ink }, steps: { line_color: ink },
        fit: { line_color: ink }, limits: { line_color: strong },
      };
      for (const [name, { plot }] of Object.entries(views)) {
        plot.setv({ outline_line_color: faint, border_fill_color: paper, background_fill_color: paper });
        for (const one of [...axesOf(plot, "below"), ...axesOf(plot, "left")]) one.setv({ axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: faint, major_tick_line_color: faint, minor_tick_line_color: null });
        for (const one of plot.center) if (one.type === "Grid") one.grid_line_color = faint;
        for (const one of plot.below) if (one.type === "ColorBar") one.setv({ major_label_text_color: ink, bar_line_color: faint });
        for (const { name: part, glyph } of plot.renderers) {
          if (looks[part]) glyph.setv(looks[part]);
          if (glyph.color_mapper) glyph.color_mapper.palette = name === "heat" && !METRICS[state.metric].low ? palette.slice().reverse() : palette;
        }
      }
    }
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => { dress(); drawCurves(); });
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; look(state.from, state.to); } });

    function follow() {
      const [, number] = /^#m(\d+)$/.exec(location.hash) || [];
      const node = number && nodes.get(runs[0].modules[number]);
      if (node) choose(node, true);
    }
    addEventListener("hashchange", follow);
    dress();
    hideCell();
    drawTree();
    drawRanks();
    choose(guilty || state.rows[0], false);
    follow();
    return { data, runs, subject, views, state, look, showCell };
  }

  addEventListener("DOMContentLoaded", () => {
    start().catch((error) => {
      dom("failed").hidden = false;
      dom("failed").textContent = `The pictures could not be drawn: ${error.message}`;
      throw error;
    });
  });
})();
