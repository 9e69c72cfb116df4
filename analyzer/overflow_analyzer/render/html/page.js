"use strict";
(() => {
  // Bokeh makes its style elements as it goes; the page's policy lets through those that bear its nonce.
  document.documentElement.classList.add("drawing");
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
  const FORWARD = ["weight", "buffer", "input", "output", "value"];
  const METRICS = {
    headroom: { title: "headroom: doublings left before the limit", strongIsLow: true, show: (v) => (v === -Infinity ? "overflowed" : `headroom ${v.toFixed(2)} bits`) },
    growth: { title: "growth: doublings a batch", show: (v) => `growth ${v >= 0 ? "+" : ""}${v.toFixed(3)} bits a batch` },
    zero: { title: "share of elements that are 0", show: (v) => `${percent(v)} are 0` },
    subnormal: { title: "share of elements that are subnormal", show: (v) => `${percent(v)} are subnormal` },
    nan: { title: "nan in one tensor", show: (v) => `${v} nan` },
    inf: { title: "inf in one tensor", show: (v) => `${v} inf` },
  };

  const dom = (id) => document.getElementById(id);
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  const span = (first, last) => (first === last ? `batch ${first}` : `batches ${first} to ${last}`);
  const figure = (log2) => (log2 === -Infinity ? "0" : (2 ** log2).toExponential(2).replace(/e([+-])(\d)$/, "e$10$2"));
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

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

  // ---- what was recorded ----

  async function readLevel(packed, batches) {
    const planes = {};
    for (const name of ["log2", "zero", "subnormal", "nan", "inf"]) planes[name] = await unpack(packed[name]);
    const { first, last, count, optimizer_step: step } = packed;
    return { first, last, count, step, planes, bins: first.length, width: count[0], start: batches - count.reduce((a, b) => a + b, 0) };
  }

  // A module's row, and the rows that are folded into it.
  function readTree(tensors) {
    const root = { name: "", label: "(root)", depth: 0, children: [], tensors: [], byName: new Map() };
    tensors.forEach((tensor, at) => {
      let node = root;
      const parts = tensor.module === "" ? [] : tensor.module.split(".");
      parts.forEach((part, depth) => {
        if (!node.byName.has(part)) {
          const child = { name: parts.slice(0, depth + 1).join("."), label: part, depth: depth + 1, children: [], tensors: [], byName: new Map(), parent: node };
          node.byName.set(part, child);
          node.children.push(child);
        }
        node = node.byName.get(part);
      });
      node.tensors.push(at);
    });
    const gather = (node) => (node.all = node.children.reduce((all, child) => all.concat(gather(child)), node.tensors.slice()));
    gather(root);
    return root;
  }

  function visibleRows(node, open, rows = []) {
    rows.push(node);
    if (open.has(node)) node.children.forEach((child) => visibleRows(child, open, rows));
    return rows;
  }

  function unfoldedAtFirst(root, guilty) {
    const open = new Set();
    let rows = 1;
    for (let level = [root]; level.length; level = level.flatMap((node) => node.children)) {
      const some = level.filter((node) => node.children.length);
      rows += some.reduce((sum, node) => sum + node.children.length, 0);
      if (rows > FIRST_ROWS && open.size) break;
      some.forEach((node) => open.add(node));
    }
    for (let node = guilty && guilty.parent; node; node = node.parent) open.add(node);
    return open;
  }

  // ---- one picture of cells ----

  function strength(run, level, metric, tensor, bin) {
    const at = tensor * level.bins + bin;
    const { planes } = level;
    if (metric === "headroom") return planes.inf && planes.inf[at] > 0 ? Infinity : planes.log2[at] - run.limit[tensor];
    if (metric === "growth") {
      if (bin === 0) return NaN;
      const grown = planes.log2[at] - planes.log2[at - 1];
      return Number.isFinite(grown) ? grown / Math.max(1, level.last[bin] - level.last[bin - 1]) : NaN;
    }
    return planes[metric] ? planes[metric][at] : NaN;
  }

  // The strongest of each row's tensors in each column; which tensor and bin it is; what is not finite there.
  function cellsOf(run, rows, level, metric, roles, from, to, step) {
    const columns = Math.ceil((to - from) / step);
    const size = rows.length * columns;
    const cells = { columns, value: new Float32Array(size).fill(NaN), tensor: new Int32Array(size).fill(-1), bin: new Int32Array(size), nan: new Float64Array(size), inf: new Float64Array(size) };
    rows.forEach((row, y) => {
      for (const tensor of row.all) {
        if (!roles.has(run.tensors[tensor].role)) continue;
        for (let bin = from; bin < to; bin++) {
          const cell = y * columns + Math.floor((bin - from) / step);
          const at = tensor * level.bins + bin;
          const value = strength(run, level, metric, tensor, bin);
          const nan = level.planes.nan ? level.planes.nan[at] || 0 : 0;
          const inf = level.planes.inf ? level.planes.inf[at] || 0 : 0;
          const worse = nan + inf > cells.nan[cell] + cells.inf[cell];
          const alike = nan + inf === cells.nan[cell] + cells.inf[cell];
          if (worse || (alike && (value > cells.value[cell] || cells.tensor[cell] < 0 && !Number.isNaN(value)))) {
            cells.tensor[cell] = tensor;
            cells.bin[cell] = bin;
          }
          if (value > cells.value[cell] || Number.isNaN(cells.value[cell])) cells.value[cell] = value;
          cells.nan[cell] = Math.max(cells.nan[cell], nan);
          cells.inf[cell] = Math.max(cells.inf[cell], inf);
        }
      }
    });
    if (METRICS[metric].strongIsLow) cells.value.forEach((value, at) => (cells.value[at] = -value));
    return cells;
  }

  // Neighbouring cells of one row with the same kind of non-finite value become one hatched field with one mark.
  function nonfiniteRuns(rows, columns, kindOf) {
    const runs = [];
    for (let y = 0; y < rows; y++) {
      for (let x = 0; x < columns; ) {
        const kind = kindOf(y * columns + x);
        let stop = x + 1;
        while (stop < columns && kindOf(y * columns + stop) === kind) stop++;
        if (kind) runs.push({ y, from: x, to: stop, kind });
        x = stop;
      }
    }
    return runs;
  }
  const kindOf = (nan, inf) => (nan && inf ? "N∞" : nan ? "N" : inf ? "∞" : "");

  function drawCells(view, name, image, rows, columns, x, dx, y, runs) {
    const sources = view.sources;
    const NDArray = view.NDArray;
    sources.cells.data = { image: [new NDArray(image.buffer, [rows, columns])], x: [x], y: [y], dw: [columns * dx], dh: [rows] };
    sources.nonfinite.data = {
      left: runs.map((run) => x + run.from * dx), right: runs.map((run) => x + run.to * dx),
      top: runs.map((run) => y + run.y), bottom: runs.map((run) => y + run.y + 1),
      hatch: runs.map((run) => (run.kind === "∞" ? "/" : "x")),
    };
    const marked = view.marks ? runs : [];
    sources.marks.data = { x: marked.map((run) => x + ((run.from + run.to) / 2) * dx), y: marked.map((run) => y + run.y + 0.5), text: marked.map((run) => run.kind) };
  }

  const axesOf = (plot, side) => plot[side].filter((one) => one.type.endsWith("Axis"));

  function axis(plot, from, to, labelOf, room) {
    const count = Math.max(2, Math.floor(room / 90));
    const ticks = [];
    const least = Math.max(1, Math.ceil((to - from) / count));
    for (let at = Math.ceil(from); at < to; at += least) ticks.push(at + 0.5);
    axesOf(plot, "below").forEach((one) => {
      one.ticker.ticks = ticks;
      one.major_label_overrides = new Map(ticks.map((tick) => [tick, labelOf(tick)]));
    });
  }

  // ---- the page ----

  async function start() {
    const data = JSON.parse(dom("data").textContent);
    const views = {};
    for (const item of data.figures) {
      const found = await Bokeh.embed.embed_item(item);
      const plot = found.roots ? found.roots[0].model : [...found][0].model;
      const sources = {};
      for (const renderer of plot.renderers) sources[renderer.data_source.name] = renderer.data_source;
      views[item.target_id] = { plot, sources, element: dom(item.target_id) };
      if (sources.cells) views[item.target_id].NDArray = sources.cells.data.image[0].constructor;
    }
    const run = await readRun(data.runs[0]);
    window.overflow = { data, run, views };
    drawRun(run, views, data);
    document.documentElement.dataset.ready = "true";
  }

  async function readRun(packed) {
    const batches = packed.levels[0].count.reduce((a, b) => a + b, 0);
    const levels = [];
    for (const level of packed.levels) levels.push(await readLevel(level, batches));
    const tensors = packed.tensors.map(([module, role, context, dtype]) => ({ module: packed.modules[module], moduleNumber: module, role: packed.roles[role], context, dtype: packed.dtypes[dtype] }));
    const limit = tensors.map((tensor) => (tensor.dtype.limit == null ? NaN : tensor.dtype.limit));
    const strip = packed.strip && { ...packed.strip, headroom: await unpack(packed.strip.headroom), nonfinite: await unpack(packed.strip.nonfinite) };
    return { ...packed, batches, levels, tensors, limit, strip };
  }

  function levelAt(run, from) {
    return run.levels.findLast((level) => from >= level.start);
  }

  function labelOf(run, position) {
    const level = levelAt(run, position);
    const bin = Math.min(level.bins - 1, Math.floor((position - level.start) / level.width));
    return String(level.first[bin]);
  }

  function drawRun(run, views, data) {
    const root = readTree(run.tensors);
    const nodes = new Map();
    const index = (node) => { nodes.set(node.name, node); node.children.forEach(index); };
    index(root);
    const guilty = data.guilty == null ? null : nodes.get(data.guilty);
    const open = unfoldedAtFirst(root, guilty);
    const state = { from: 0, to: run.batches, metric: "headroom", roles: new Set(FORWARD), rows: [], top: 0, cursor: null, cells: null, module: null, chosen: new Set() };
    const roles = [...new Set(run.tensors.map((tensor) => tensor.role))];
    window.overflow.state = state;

    // -- controls --
    for (const role of roles) dom("role").append(new Option(role, role));
    const has = (name) => run.levels.some((level) => level.planes[name]);
    for (const option of dom("metric").options) option.disabled = !["headroom", "growth"].includes(option.value) && !has(option.value);
    dom("metric").onchange = () => { state.metric = dom("metric").value; drawHeat(); };
    dom("role").onchange = () => { state.roles = new Set(dom("role").value ? [dom("role").value] : FORWARD); drawHeat(); };
    dom("fold").onclick = () => { open.clear(); open.add(root); drawTree(); };
    dom("unfold").onclick = () => { nodes.forEach((node) => node.children.length && open.add(node)); drawTree(); };
    const zoom = (factor, centre = (state.from + state.to) / 2) => {
      const half = Math.max(0.5, ((state.to - state.from) * factor) / 2);
      look(centre - half, centre + half);
    };
    const move = (share) => { const by = (state.to - state.from) * share; look(state.from + by, state.to + by); };
    dom("zoom-in").onclick = () => zoom(0.5);
    dom("zoom-out").onclick = () => zoom(2);
    dom("earlier").onclick = () => move(-0.5);
    dom("later").onclick = () => move(0.5);
    dom("all").onclick = () => look(0, run.batches);

    function look(from, to) {
      const width = Math.min(run.batches, Math.max(1, to - from));
      state.from = Math.max(0, Math.min(run.batches - width, from));
      state.to = state.from + width;
      drawHeat();
      drawCurves();
      drawRanks();
    }
    window.overflow.look = look;
    for (const view of Object.values(views)) {
      // A drag has set the range of one picture: all follow.
      view.plot.x_range.change.connect(() => {
        const { start: from, end: to } = view.plot.x_range;
        if (Math.abs(from - state.from) + Math.abs(to - state.to) > 1e-6) look(from, to);
      });
      view.element.ondblclick = () => look(0, run.batches);
    }
    const setRange = (plot) => { plot.x_range.setv({ start: state.from, end: state.to }); };

    // -- the modules' names --
    function drawTree() {
      state.rows = visibleRows(root, open);
      if (run.tensors.length && !root.tensors.length && root.children.length) state.rows.shift();
      const list = dom("rows");
      const focused = document.activeElement && document.activeElement.dataset.node;
      list.replaceChildren(...state.rows.map((node) => {
        const row = document.createElement("div");
        row.className = node === guilty ? "row guilty" : "row";
        row.style.setProperty("--depth", node.depth);
        const fold = document.createElement(node.children.length && node !== root ? "button" : "span");
        fold.className = "toggle";
        if (fold.tagName === "BUTTON") {
          fold.textContent = open.has(node) ? "▾" : "▸";
          fold.setAttribute("aria-expanded", open.has(node));
          fold.setAttribute("aria-label", `${open.has(node) ? "fold" : "unfold"} ${node.name}`);
          fold.dataset.node = node.name;
          fold.onclick = () => { open.has(node) ? open.delete(node) : open.add(node); drawTree(); };
        }
        const name = document.createElement("button");
        name.className = "name";
        name.textContent = node.label;
        name.title = node.name || "the root module";
        name.onclick = () => choose(node, true);
        row.append(fold, name);
        return row;
      }));
      if (focused != null) [...list.querySelectorAll("[data-node]")].find((one) => one.dataset.node === focused)?.focus();
      const shown = Math.min(state.rows.length, MOST_ROWS);
      list.style.setProperty("height", `${shown * ROW}px`);
      views.heat.plot.frame_height = shown * ROW;
      drawHeat();
    }
    dom("rows").onscroll = () => drawHeat();
    views.heat.element.addEventListener("wheel", (event) => {
      const list = dom("rows");
      if (list.scrollHeight > list.clientHeight && !event.ctrlKey) { list.scrollTop += event.deltaY; event.preventDefault(); }
    }, { passive: false });

    // -- the heat map --
    function drawHeat() {
      const { plot, sources } = views.heat;
      const metric = METRICS[state.metric];
      const shown = Math.min(state.rows.length, MOST_ROWS);
      const scrolled = dom("rows").scrollTop / ROW;
      state.top = Math.floor(scrolled);
      const rows = state.rows.slice(state.top, state.top + shown + 1);
      const level = levelAt(run, state.from);
      const from = Math.max(0, Math.floor((state.from - level.start) / level.width));
      const to = Math.min(level.bins, Math.ceil((state.to - level.start) / level.width));
      const room = views.heat.element.clientWidth || 600;
      const step = Math.max(1, Math.ceil((to - from) / Math.max(50, Math.floor(room / 2))));
      const cells = cellsOf(run, rows, level, state.metric, state.roles, from, to, step);
      state.cells = { ...cells, level, from, to, step, rows };
      const image = Float32Array.from(cells.value);
      let [low, high] = [Infinity, -Infinity];
      for (const value of image) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
      const mapper = plot.renderers[0].glyph.color_mapper;
      const counts = state.metric === "nan" || state.metric === "inf";
      const shares = state.metric === "zero" || state.metric === "subnormal";
      high = high === -Infinity ? 1 : shares ? 1 : Math.max(counts ? 1 : 1e-3, high);
      mapper.setv({ low: metric.strongIsLow ? Math.min(0, Math.max(low, -1)) : 0, high: metric.strongIsLow ? Math.ceil(high) : high });
      for (let at = 0; at < image.length; at++) {
        // All 0 has all the room there is; what has neither a figure nor a count was not recorded.
        if (image[at] === Infinity) image[at] = mapper.high;
        if (image[at] === -Infinity) image[at] = mapper.low;
      }
      const kinds = (at) => kindOf(cells.nan[at], cells.inf[at]);
      views.heat.marks = true;
      const dx = step * level.width;
      drawCells(views.heat, "heat", image, rows.length, cells.columns, level.start + from * level.width, dx, state.top, nonfiniteRuns(rows.length, cells.columns, kinds));
      plot.y_range.setv({ start: scrolled + shown, end: scrolled });
      setRange(plot);
      axis(plot, state.from, state.to, (at) => labelOf(run, at), room);
      dom("heat-title").textContent = metric.title;
      dom("resolution").textContent = dx > 1 ? `a column holds up to ${dx} recorded batches: their largest figures` : "a column is one recorded batch";
      if (state.cursor) showCell(state.cursor.y, state.cursor.x, null);
    }

    function showCell(y, x, pointer) {
      const { cells } = state;
      const { sources } = views.heat;
      const row = cells && cells.rows[y - state.top];
      const column = Math.floor((x - cells.level.start - cells.from * cells.level.width) / (cells.step * cells.level.width));
      if (!row || column < 0 || column >= cells.columns) return hideCell();
      const at = (y - state.top) * cells.columns + column;
      const { level, from, step, to } = cells;
      const [start, stop] = [from + column * step, Math.min(to, from + (column + 1) * step) - 1];
      const lines = [`${row.name || "(root)"}, ${span(level.first[start], level.last[stop])}`];
      const tensor = run.tensors[cells.tensor[at]];
      if (!tensor) lines.push("not recorded");
      else {
        const value = strength(run, level, state.metric, cells.tensor[at], cells.bin[at]);
        if (!Number.isNaN(value)) lines.push(METRICS[state.metric].show(METRICS[state.metric].strongIsLow ? -value : value));
        if (cells.nan[at] || cells.inf[at]) lines.push([cells.nan[at] && `${cells.nan[at]} nan`, cells.inf[at] && `${cells.inf[at]} inf`].filter(Boolean).join(", "));
        lines.push(`${tensor.context} of ${tensor.module || "(root)"} (${tensor.role}, ${tensor.dtype.name || "no dtype"})`);
        lines.push(...figuresOf(level, cells.tensor[at], cells.bin[at]));
      }
      state.cursor = { x, y };
      const left = level.start + start * level.width;
      sources.cursor.data = { left: [left], right: [level.start + (stop + 1) * level.width], top: [y], bottom: [y + 1] };
      dom("figures").replaceChildren(...lines.map((line, number) => Object.assign(document.createElement("div"), { textContent: line, className: number ? "" : "where" })));
    }
    function figuresOf(level, tensor, bin) {
      const at = tensor * level.bins + bin;
      const log2 = level.planes.log2[at];
      const { limit, name } = run.tensors[tensor].dtype;
      if (Number.isNaN(log2)) return ["no finite element"];
      const share = limit == null ? "" : `, ${percent(2 ** (log2 - limit))} of ${name}'s limit`;
      return [`largest finite ${figure(log2)}${share}${level.first[bin] === level.last[bin] ? "" : `, in ${span(level.first[bin], level.last[bin])}`}`];
    }
    function hideCell() {
      state.cursor = null;
      views.heat.sources.cursor.data = { left: [], right: [], top: [], bottom: [] };
      dom("figures").replaceChildren(Object.assign(document.createElement("div"), { textContent: "Point at a cell, or move to one with the arrow keys, to read its figures.", className: "hint" }));
    }
    window.overflow.showCell = (name, batch) => showCell(state.rows.findIndex((node) => node.name === name), batch, null);
    views.heat.plot.on_event("mousemove", (event) => showCell(Math.floor(event.y), event.x));
    views.heat.plot.on_event("tap", (event) => {
      const row = state.rows[Math.floor(event.y)];
      if (row) choose(row, false);
    });
    dom("heat-frame").onkeydown = (event) => {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (steps) {
        const dx = state.cells.step * state.cells.level.width;
        const cursor = state.cursor || { x: state.to - 0.5, y: state.top - (steps[1] > 0 ? 1 : 0) };
        const y = Math.max(0, Math.min(state.rows.length - 1, cursor.y + steps[1]));
        const x = Math.max(state.from + 0.01, Math.min(state.to - 0.01, cursor.x + steps[0] * dx));
        const list = dom("rows");
        if (y < state.top || y >= state.top + MOST_ROWS) { list.scrollTop = y < state.top ? y * ROW : (y - MOST_ROWS + 1) * ROW; state.cursor = { x, y }; drawHeat(); }
        showCell(y, x);
      } else if (event.key === "Enter" && state.cursor) choose(state.rows[state.cursor.y], true);
      else if (event.key === "+" || event.key === "=") zoom(0.5, state.cursor ? state.cursor.x : undefined);
      else if (event.key === "-") zoom(2, state.cursor ? state.cursor.x : undefined);
      else if (event.key === "0") look(0, run.batches);
      else return;
      event.preventDefault();
    };

    // -- curves --
    function choose(node, jump) {
      let found = node;
      while (!found.tensors.length && found.children.length) found = found.children[0];
      state.module = found;
      state.chosen = new Set(found.tensors.filter((at) => run.tensors[at].role !== "buffer").slice(0, 12));
      if (!state.chosen.size) state.chosen = new Set(found.tensors.slice(0, 12));
      drawChoice();
      drawCurves();
      if (jump) dom("curves-title").scrollIntoView({ block: "start", behavior: "instant" });
    }
    function colourOf(tensor) {
      return style(`--line-${state.module.tensors.indexOf(tensor) % 8}`);
    }
    function drawChoice() {
      dom("curves-title").textContent = `Curves of ${state.module.name || "the root module"}`;
      dom("choice").replaceChildren(...state.module.tensors.map((at) => {
        const { context, role, dtype } = run.tensors[at];
        const label = document.createElement("label");
        const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: state.chosen.has(at) });
        box.onchange = () => { box.checked ? state.chosen.add(at) : state.chosen.delete(at); drawCurves(); };
        const swatch = document.createElement("span");
        swatch.className = "swatch";
        swatch.style.setProperty("--colour", `var(--line-${state.module.tensors.indexOf(at) % 8})`);
        label.append(box, swatch, `${context} (${role}${dtype.name ? `, ${dtype.name}` : ""})`);
        return label;
      }));
    }

    // (position, bin, level) of every recorded bin in view, the last batches one by one.
    function binsInView() {
      const found = [];
      const recent = run.levels.length > 1 ? run.levels[1] : null;
      const level = levelAt(run, state.from);
      for (const one of level === recent ? [recent] : run.levels) {
        for (let bin = 0; bin < one.bins; bin++) {
          const from = one.start + bin * one.width;
          if (one !== recent && recent && from + one.width > recent.start) continue;
          if (from + one.width <= state.from || from >= state.to) continue;
          found.push({ x: from + one.width / 2, bin, level: one });
        }
      }
      return found;
    }

    function curvesOf(tensors, colour) {
      const lines = { xs: [], ys: [], color: [], dash: [], label: [] };
      const points = { x: [], y: [], color: [], marker: [], label: [], batch: [], value: [] };
      const marks = { x: [], text: [] };
      const bins = binsInView();
      let [low, high] = [Infinity, -Infinity];
      tensors.forEach((tensor, number) => {
        const { context, role, module } = run.tensors[tensor];
        const label = role === "value" ? `${module}: ${context}` : `${context} (${role})`;
        const xs = [], ys = [];
        for (const { x, bin, level } of bins) {
          const at = tensor * level.bins + bin;
          const log2 = level.planes.log2[at];
          const kind = kindOf(level.planes.nan && level.planes.nan[at] > 0, level.planes.inf && level.planes.inf[at] > 0);
          if (kind) { marks.x.push(x); marks.text.push(kind); }
          xs.push(x);
          ys.push(Number.isFinite(log2) ? 2 ** log2 : NaN);
          if (Number.isFinite(log2)) {
            [low, high] = [Math.min(low, log2), Math.max(high, log2)];
            points.x.push(x); points.y.push(2 ** log2); points.color.push(colour(tensor));
            points.marker.push(["circle", "square", "triangle", "diamond"][number % 4]); points.label.push(label);
            points.batch.push(level.first[bin] === level.last[bin] ? `${level.first[bin]}` : `${level.first[bin]} to ${level.last[bin]}`);
            points.value.push(figure(log2));
          }
        }
        lines.xs.push(xs); lines.ys.push(ys); lines.color.push(colour(tensor));
        lines.dash.push(["solid", "dashed", "dotted", "dotdash"][Math.floor(number / 8) % 4]); lines.label.push(label);
      });
      return { lines, points, marks, low, high, bins };
    }

    function gapsIn(bins) {
      const gaps = [];
      bins.forEach((one, at) => {
        const before = at && bins[at - 1];
        if (before && one.level.first[one.bin] > before.level.last[before.bin] + 1) gaps.push(one.x - one.level.width / 2);
      });
      return gaps.length > 200 ? [] : gaps;
    }

    function fill(view, curves, limits, fit, steps) {
      const { plot, sources } = view;
      let { low, high } = curves;
      if (low > high) [low, high] = [-1, 1];
      const near = limits.filter((limit) => limit.log2 <= high + NEAR_BITS && limit.log2 >= low - NEAR_BITS);
      low = Math.min(low, ...near.map((limit) => limit.log2));
      high = Math.max(high, ...near.map((limit) => limit.log2));
      const margin = Math.max(1, (high - low) * 0.12);
      plot.y_range.setv({ start: 2 ** Math.max(-1070, low - margin), end: 2 ** Math.min(1023, high + margin) });
      setRange(plot);
      axis(plot, state.from, state.to, (at) => labelOf(run, at), view.element.clientWidth || 600);
      sources.lines.data = curves.lines;
      sources.points.data = curves.points;
      sources.gaps.data = { x: gapsIn(curves.bins) };
      sources.limits.data = { y: near.map((limit) => 2 ** limit.log2) };
      sources.limit_names.data = { x: near.map(() => state.from), y: near.map((limit) => 2 ** limit.log2), text: near.map((limit) => limit.name) };
      sources.marks.data = { ...curves.marks, y: curves.marks.x.map(() => plot.y_range.end) };
      sources.fit.data = fit;
      sources.steps.data = { x: steps, y: steps.map(() => plot.y_range.start) };
    }

    function stepsIn(bins) {
      return bins.filter((one, at) => at && one.level.step[one.bin] > bins[at - 1].level.step[bins[at - 1].bin]).map((one) => one.x);
    }

    function fitOf(chosen) {
      const fit = run.fits[state.module.name];
      const last = run.levels[run.levels.length - 1];
      if (!fit || !chosen.length) return { x: [], y: [] };
      const [first, end, growth, share] = fit;
      const limit = Math.max(...chosen.map((at) => run.limit[at]).filter((one) => !Number.isNaN(one)));
      if (!Number.isFinite(limit)) return { x: [], y: [] };
      const position = (batch) => last.start + last.first.findIndex((one) => one >= batch) + 0.5;
      return { x: [position(first), position(end)], y: [2 ** (limit + share - growth * (end - first)), 2 ** (limit + share)] };
    }

    function drawCurves() {
      if (!state.module) return;
      const chosen = [...state.chosen];
      const dtypes = [...new Set(chosen.map((at) => run.tensors[at].dtype))].filter((dtype) => dtype.limit != null);
      const limits = dtypes.flatMap((dtype) => [
        { log2: dtype.limit, name: `${dtype.name} max ${figure(dtype.limit)}` },
        { log2: dtype.normal, name: `${dtype.name} smallest normal ${figure(dtype.normal)}` },
      ]);
      const curves = curvesOf(chosen, colourOf);
      const fit = fitOf(chosen);
      fill(views.curves, curves, limits, fit, []);
      const fitted = run.fits[state.module.name];
      const far = dtypes.filter((dtype) => dtype.limit > curves.high + NEAR_BITS).map((dtype) => `${dtype.name}'s limit ${figure(dtype.limit)} is ${(dtype.limit - curves.high).toFixed(0)} bits above`);
      if (fitted) far.unshift(`growth ${fitted[2] >= 0 ? "+" : ""}${fitted[2].toFixed(3)} bits a batch over the last ${fitted[1] - fitted[0] + 1} batches${fitted[2] > 0 ? `: at this rate the limit is ${(-fitted[3] / fitted[2]).toPrecision(3)} batches away` : ""}`);
      dom("curves-note").textContent = far.join("; ");
      const values = run.tensors.map((_, at) => at).filter((at) => run.tensors[at].role === "value");
      const shown = curvesOf(values, (at) => style(`--line-${values.indexOf(at) % 8}`));
      const steps = stepsIn(shown.bins);
      dom("values").hidden = !values.length && !steps.length;
      views.values.plot.frame_height = values.length ? 120 : 12;
      axesOf(views.values.plot, "left").forEach((one) => (one.visible = values.length > 0));
      views.values.plot.min_border_left = 64;
      fill(views.values, shown, [], { x: [], y: [] }, steps.length > 400 ? [] : steps);
      const known = shown.bins.filter((one) => one.level.step[one.bin] >= 0);
      const advance = known.length > 1 ? known[known.length - 1].level.step[known[known.length - 1].bin] - known[0].level.step[known[0].bin] : 0;
      dom("values-note").textContent = [values.length ? `recorded: ${values.map((at) => `${run.tensors[at].module} ${run.tensors[at].context}`).join(", ")}` : "no value was recorded", `${advance} optimizer steps in view${steps.length > 400 ? "" : ", each marked below"}`].join("; ");
    }

    // -- ranks --
    function drawRanks() {
      const view = views.ranks;
      if (!view || !run.strip) return;
      const { strip } = run;
      const bins = strip.first.length;
      const rows = strip.ranks.length;
      const height = Math.max(40, Math.min(512, rows * 16));
      view.plot.frame_height = height;
      const width = run.batches / bins;
      const exact = strip.width;
      const mapper = view.plot.renderers[0].glyph.color_mapper;
      const image = Float32Array.from(strip.headroom, (value) => (value === Infinity ? NaN : value));
      let high = 1;
      for (const value of image) if (Number.isFinite(value)) high = Math.max(high, value);
      mapper.setv({ low: 0, high: Math.ceil(high) });
      const runs = nonfiniteRuns(rows, bins, (at) => (strip.nonfinite[at] > 0 ? "N" : ""));
      view.marks = false;
      drawCells(view, "ranks", image, rows, bins, 0, exact, 0, runs);
      view.plot.y_range.setv({ start: rows, end: 0 });
      setRange(view.plot);
      axis(view.plot, state.from, state.to, (at) => labelOf(run, at), view.element.clientWidth || 600);
      const every = Math.max(1, Math.ceil(rows / Math.max(1, Math.floor(height / 16))));
      const ticks = strip.ranks.map((_, at) => at + 0.5).filter((_, at) => at % every === 0);
      axesOf(view.plot, "left").forEach((one) => {
        one.ticker.ticks = ticks;
        one.major_label_overrides = new Map(ticks.map((tick) => [tick, String(strip.ranks[Math.floor(tick)])]));
      });
      const positions = strip.starts.map(([rank, batch]) => [strip.ranks.indexOf(rank), strip.first.findLastIndex((one) => one <= batch)]).filter(([at, bin]) => at >= 0 && bin >= 0);
      view.sources.firsts.data = { x: positions.map(([, bin]) => (bin + 0.5) * exact), y: positions.map(([at]) => at + 0.5) };
      void width;
    }
    if (views.ranks) {
      views.ranks.plot.on_event("mousemove", (event) => {
        const { strip } = run;
        const at = Math.floor(event.y), bin = Math.floor(event.x / strip.width);
        const rank = strip.ranks[at];
        if (rank === undefined || !(bin in strip.first)) return;
        const headroom = strip.headroom[at * strip.first.length + bin], count = strip.nonfinite[at * strip.first.length + bin];
        dom("rank-figures").textContent = `rank ${rank}, ${span(strip.first[bin], strip.last[bin])}: ${Number.isNaN(headroom) ? "no headroom recorded" : `least headroom ${headroom.toFixed(2)} bits`}${count > 0 ? `, up to ${count} non-finite elements in a tensor` : ""}`;
      });
    }

    // -- colours --
    function dress() {
      const [ink, faint, paper, strong] = ["--ink", "--line", "--paper", "--mark"].map(style);
      const palette = data.palettes[style("--scheme")];
      for (const [name, { plot }] of Object.entries(views)) {
        for (const one of [...axesOf(plot, "below"), ...axesOf(plot, "left")]) one.setv({ axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: faint, major_tick_line_color: faint, minor_tick_line_color: null });
        plot.setv({ outline_line_color: faint });
        for (const one of plot.center.filter((one) => one.type === "Grid")) one.setv({ grid_line_color: faint });
        for (const renderer of plot.renderers) {
          const { glyph } = renderer;
          if (renderer.name === "nonfinite") glyph.setv({ fill_color: paper, hatch_color: strong, line_color: strong });
          else if (renderer.name === "marks") glyph.setv({ text_color: ink, background_fill_color: paper });
          else if (renderer.name === "cursor") glyph.setv({ line_color: ink });
          else if (renderer.name === "firsts") glyph.setv({ fill_color: paper, line_color: ink });
          else if (["gaps", "limits", "steps", "fit"].includes(renderer.name)) glyph.setv({ line_color: renderer.name === "limits" ? strong : ink });
          else if (renderer.name === "limit_names") glyph.setv({ text_color: ink });
          if (glyph.color_mapper) glyph.color_mapper.palette = name === "heat" && !METRICS[state.metric].strongIsLow ? palette.slice().reverse() : palette;
        }
        for (const bar of plot.below.filter((one) => one.type === "ColorBar")) bar.setv({ major_label_text_color: ink, title_text_color: ink, bar_line_color: faint });
      }
    }
    const redress = () => { dress(); drawCurves(); };
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", redress);
    dom("metric").addEventListener("change", dress);
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawHeat(); drawCurves(); drawRanks(); } });

    function follow() {
      const number = /^#m(\d+)$/.exec(location.hash);
      const name = number && run.modules[Number(number[1])];
      if (name != null && nodes.has(name)) choose(nodes.get(name), true);
    }
    addEventListener("hashchange", follow);
    dress();
    hideCell();
    drawTree();
    choose(guilty || state.rows.find((node) => node.tensors.length) || root, false);
    drawRanks();
    follow();
  }

  addEventListener("DOMContentLoaded", () => {
    start().catch((error) => {
      dom("failed").hidden = false;
      dom("failed").textContent = `The pictures could not be drawn: ${error.message}`;
      throw error;
    });
  });
})();
