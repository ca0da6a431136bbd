// Charts that answer. Charts of lines arrive as pictures (components/plot.html) with their numbers in data-plot; uPlot draws them again
// with a crosshair, zoom, smoothing and a log axis. Columns stay pictures and get a tooltip. Idea: what a reader has chosen is one value,
// `view`, kept in the address after "#view?"; every change draws the chart from its numbers and the view, so a live update, a shared
// link and a click take the same path.
(function () {
  "use strict";
  const $ = (selector, root) => (root || document).querySelector(selector);
  const $$ = (selector, root) => [...(root || document).querySelectorAll(selector)];
  const COLOURS = 10, DASHES = [undefined, [6, 3], [2, 3], [10, 3, 2, 3]], MARK = "#view?", MOST_ROWS = 12, DECADES = 1e4, PNG = { width: 960, height: 480 };

  // --- The view ----------------------------------------------------------------------------------------------------------
  // `log`: whether single charts have a log axis, by choice; `y`: what all others have.
  const view = { axis: "x", y: "", smooth: 0, log: new Map(), zoom: new Map(), tall: new Map(), hidden: new Set(), all: new Set() };
  const byStep = (chart) => chart.x === "step";
  const name = (chart, line) => chart.key + "|" + line.label;
  function readView() {
    // Links to Compare may have the choice for pictures (?x=time&smooth=0.6).
    const said = new URLSearchParams(location.hash.startsWith(MARK) ? location.hash.slice(MARK.length) : location.search.replace(/\bx=time\b/, "x=relative"));
    const weight = Number(said.get("smooth"));
    view.axis = ["relative", "time"].includes(said.get("x")) ? said.get("x") : "x";
    view.smooth = weight > 0 && weight < 1 ? weight : 0;
    view.y = ["linear", "log"].includes(said.get("y")) ? said.get("y") : "";
    view.log = new Map(["linear", "log"].flatMap((name) => said.getAll(name).map((title) => [title, name === "log"])));
    view.hidden = new Set(said.getAll("hide"));
    view.all = new Set(said.getAll("all"));
    // "low:high:title", of the x axis and of the y axis.
    [view.zoom, view.tall] = ["zoom", "zoomy"].map((name) => new Map(said.getAll(name).map((text) => text.split(":"))
      .filter(([low, high]) => Number(low) < Number(high) && isFinite(low) && isFinite(high)).map(([low, high, ...title]) => [title.join(":"), [Number(low), Number(high)]])));
  }
  function writeView() {
    const said = new URLSearchParams();
    if (view.axis !== "x") said.set("x", view.axis);
    if (view.smooth) said.set("smooth", view.smooth);
    if (view.y) said.set("y", view.y);
    view.log.forEach((is, title) => said.append(is ? "log" : "linear", title));
    view.hidden.forEach((line) => said.append("hide", line));
    view.all.forEach((title) => said.append("all", title));
    [["zoom", view.zoom], ["zoomy", view.tall]].forEach(([name, zooms]) => zooms.forEach(([low, high], title) =>
      said.append(name, Number(low.toPrecision(12)) + ":" + Number(high.toPrecision(12)) + ":" + title)));
    // A choice for pictures in the address would come back where nothing is said.
    const text = said.toString(), kept = text || /[?&](x|smooth)=/.test(location.search);
    if (kept || location.hash.startsWith(MARK)) history.replaceState(history.state, "", kept ? MARK + text : location.pathname + location.search);
    $$("[data-copy-view]").forEach((button) => { button.dataset.copy = location.href; });
    // What keeps a view of Results keeps how its charts are drawn.
    $$("[data-with-look]").forEach((field) => { field.value = field.value.split("#")[0] + (text ? MARK + text : ""); });
  }

  // --- Words ---------------------------------------------------------------------------------------------------------------
  const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
  // As `number` of portal/pages/charts.py says it, so that a chart and a table say the same.
  function number(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value), rounded = Number(value.toPrecision(4));
    if (size && (size < 1e-4 || size >= 1e9)) return Number(value.toPrecision(3)).toExponential().replace(/([+-])(\d)$/, "$10$2");
    return size >= 1000 ? grouped.format(Math.round(value)) : String(rounded);
  }
  function duration(seconds) {
    const parts = [[86400, "d"], [3600, "h"], [60, "min"]], found = [];
    let rest = Math.round(seconds * 1000) / 1000;
    for (const [size, unit] of parts) if (rest >= size) { found.push(Math.floor(rest / size) + " " + unit); rest %= size; }
    if (rest || !found.length) found.push(grouped.format(found.length ? Math.round(rest) : rest) + " s");
    return found.slice(0, 2).join(" ");
  }
  const ZONE = document.documentElement.dataset.zone || Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  function zoned(seconds) {
    try { return window.uPlot.tzDate(new Date(seconds * 1000), ZONE); } catch (error) { return window.uPlot.tzDate(new Date(seconds * 1000), "UTC"); }
  }
  const clock = (pattern, seconds) => window.uPlot.fmtDate(pattern)(zoned(seconds));
  const short = (chart, x) => chart.axis === "time" ? clock("{HH}:{mm}:{ss}", x) : chart.axis === "relative" ? duration(x) : grouped.format(x);
  const place = (chart, x) => chart.axis === "time" ? clock("{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}", x) : chart.axis === "relative" ? duration(x) : chart.x + " " + grouped.format(x);

  // --- Numbers -------------------------------------------------------------------------------------------------------------
  function smoothed(values, weight) {
    // TensorBoard's: an exponential average without the bias of its first value.
    let last = 0, count = 0;
    return values.map((y) => {
      if (y === null) return y;
      last = last * weight + (1 - weight) * y;
      count += 1;
      return last / (1 - weight ** count);
    });
  }
  function columns(chart) {
    const log = chart.log, drawable = (y) => log && !(y > 0) ? null : y;
    chart.both = view.smooth > 0 && !chart.lines.some((line) => line.dots);
    // What each column is: of which line, and which of its values.
    chart.of = [null];
    const tables = chart.lines.map((line) => {
      const xs = chart.axis === "x" ? line.x : line.times.map((t) => chart.axis === "time" ? line.began + t : t);
      const order = xs.map((_, n) => n).sort((a, b) => xs[a] - xs[b] || a - b), kinds = { value: line.y };
      if (chart.both) kinds.smooth = smoothed(line.y, view.smooth);
      if (line.spread) [kinds.low, kinds.high] = line.spread.map((ys) => chart.both ? smoothed(ys, view.smooth) : ys);
      line.at = {};
      Object.keys(kinds).forEach((kind) => { line.at[kind] = chart.of.push({ line, kind }) - 1; });
      return [order.map((n) => xs[n]), ...Object.values(kinds).map((ys) => order.map((n) => drawable(ys[n])))];
    });
    return window.uPlot.join(tables);
  }
  const valuesOf = (line) => (line.spread ? line.spread.flat() : line.y).filter((y) => y !== null);
  // The lowest and the highest value of each line that is shown.
  function spansOf(chart) {
    return chart.lines.filter((line) => !view.hidden.has(name(chart, line))).map((line) => {
      const ys = valuesOf(line);
      return ys.length ? { line, low: Math.min(...ys), high: Math.max(...ys) } : null;
    }).filter(Boolean);
  }
  // By choice, else where positive values span four powers of ten: on a linear axis most of them would lie on its foot.
  function isLog(chart, spans) {
    const low = Math.min(...spans.map((each) => each.low)), high = Math.max(...spans.map((each) => each.high));
    if (view.log.has(chart.key)) return view.log.get(chart.key);
    return view.y === "log" ? high > 0 : view.y === "" && !chart.zero && low > 0 && high / low >= DECADES;
  }
  // A line that leaves the others far behind, such as that of a run that diverged, would make them flat. By Tukey's outer fences, if
  // that makes the rest at least four times as high: the bounds of the rest, and those lines.
  function outliers(chart, spans) {
    if (spans.length < 4 || view.all.has(chart.key)) return null;
    const fence = (values, sign) => {
      const sorted = [...values].sort((a, b) => a - b), at = (share) => sorted[Math.round(share * (sorted.length - 1))];
      return sign > 0 ? at(0.75) + 3 * (at(0.75) - at(0.25)) : at(0.25) - 3 * (at(0.75) - at(0.25));
    };
    const top = fence(spans.map((each) => each.high), 1), foot = fence(spans.map((each) => each.low), -1), out = spans.filter((each) => each.high > top || each.low < foot), rest = spans.filter((each) => !out.includes(each));
    if (!out.length) return null;
    const bounds = (several) => [Math.min(...several.map((each) => each.low)), Math.max(...several.map((each) => each.high))], [low, high] = bounds(rest), [least, most] = bounds(spans);
    return most - least >= 4 * (high - low) && high > low ? { low, high, out } : null;
  }
  // Which point of a line the crosshair means: the nearest one, if the crosshair is within the line.
  function nearest(u, series, at, x) {
    const xs = u.data[0], ys = u.data[series];
    if (ys[at] !== undefined) return at;
    let before = at, after = at;
    while (before >= 0 && (ys[before] === null || ys[before] === undefined)) before -= 1;
    while (after < ys.length && (ys[after] === null || ys[after] === undefined)) after += 1;
    if (before < 0 || after >= ys.length) return null;
    return x - xs[before] <= xs[after] - x ? before : after;
  }

  // --- Colours -------------------------------------------------------------------------------------------------------------
  // Read once a theme, because reading styles between changes of the page makes the browser lay it out again.
  let theme = null, family = "";
  function colour(variable) {
    if (!theme) theme = new Map();
    if (!theme.has(variable)) theme.set(variable, getComputedStyle(document.documentElement).getPropertyValue("--" + variable).trim());
    return theme.get(variable);
  }
  const colourOf = (line) => colour("chart-" + ((line.series - 1) % COLOURS + 1)), dashOf = (line) => DASHES[Math.floor((line.series - 1) / COLOURS)];

  // --- A chart -------------------------------------------------------------------------------------------------------------
  const charts = new Map(), seen = new Set();  // by box; the keys of those that have been drawn, which are drawn again at once
  let hot = null, pointer = null, dragging = false;
  const STEPS = [1, 2, 5].flatMap((n) => [...Array(19).keys()].map((power) => n * 10 ** power)).sort((a, b) => a - b);
  const SECONDS = [...[-3, -2, -1].flatMap((power) => [1, 2, 5].map((n) => n * 10 ** power)), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, ...[1, 2, 5, 10, 20, 50, 100].map((n) => n * 86400)];

  // No line leads to the only value of a metric: it is a dot.
  const isSingle = (line) => line.y.filter((y) => y !== null).length === 1;

  function draw(chart) {
    const box = chart.box, width = chart.u ? chart.u.width : 0;
    family = family || getComputedStyle(document.body).fontFamily;
    const font = "12px " + family;
    chart.axis = chart.axes.includes(view.axis) ? view.axis : chart.axes[0];
    const spans = spansOf(chart), beyond = outliers(chart, spans);
    const log = chart.log = isLog(chart, beyond ? spans.filter((each) => !beyond.out.includes(each)) : spans), data = columns(chart);
    const zoom = () => view.zoom.get(chart.key), said = view.tall.get(chart.key);
    // A link may say anything, and uPlot would count for ever between two floats that are neighbours.
    const tall = said && (!log || said[0] > 0) && said[1] - said[0] > 1e-9 * Math.max(...said.map(Math.abs)) ? said : null;
    const far = tall || log ? null : beyond;
    const whole = !tall && !chart.both && chart.lines.every((line) => line.y.every((y) => y === null || Number.isInteger(y)));
    const series = chart.of.map((each, at) => {
      if (!each) return {};
      const { line, kind } = each, stroke = () => colourOf(line), show = !view.hidden.has(name(chart, line));
      if (isEdge(chart, at)) return { show, width: 0, points: { show: false } };  // uPlot makes bands of paths
      if (kind === "value" && chart.both) return { show, width: 1, stroke: () => colourOf(line) + "50", points: { show: false } };
      return { label: line.label, show, width: 1.75, dash: dashOf(line), stroke, points: { show: line.dots || isSingle(line) || undefined, size: 5, fill: stroke, space: 24 }, ...(line.dots ? { paths: () => null } : {}) };
    });
    const axis = { font, stroke: () => colour("muted"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false } };
    if (chart.u) chart.u.destroy();
    $(".plot", box).hidden = true;
    chart.mount.hidden = false;
    chart.u = new window.uPlot({
      width: width || Math.max(chart.mount.clientWidth, 120), height: heightOf(chart), padding: [10, 24, 0, 0], legend: { show: false }, tzDate: zoned, focus: { alpha: 0.25 },
      series, bands: chart.lines.filter((line) => line.spread).map((line) => ({ series: [line.at.high, line.at.low], fill: () => colourOf(line) + "38" })),
      scales: {
        x: { time: chart.axis === "time", range: () => within(zoom(), data[0]) },
        y: {
          distr: log ? 3 : 1, log: 10,
          range: (u, low, high) => {
            if (tall) return tall;
            if (far) [low, high] = [far.low, far.high];
            if (low === null || low === undefined) return log ? [0.1, 1] : [0, 1];
            if (log) {
              // From one digit of a power of ten to another.
              const [down, up] = [low, high].map((y) => 10 ** Math.floor(Math.log10(y) + 1e-12));
              const from = Math.floor(low / down + 1e-9) * down, to = Math.ceil(high / up - 1e-9) * up;
              return [from, to > from ? to : from * 2].map((y) => Number(y.toPrecision(12)));
            }
            // A constant stands in the middle, where uPlot would begin at zero.
            if (!chart.zero && high - low <= 1e-9 * Math.abs(high)) { const room = Math.abs(low) / 10 || 1; return [low - room, high + room]; }
            // Without any of what is counted, uPlot's axis would go to 100.
            if (chart.zero && high <= 0) return [0, 1];
            const [from, to] = window.uPlot.rangeNum(low, high, 0.08, true);
            return [chart.zero ? 0 : from, to > (chart.zero ? 0 : from) ? to : from + 1];
          },
        },
      },
      axes: [
        {
          ...axis, size: 26, gap: 6, space: 72, grid: { show: false },
          ...(chart.axis === "x" ? { label: chart.x, labelFont: font, labelSize: 16, labelGap: -2, incrs: STEPS, values: (u, ticks) => ticks.map((x) => grouped.format(x)) }
            : chart.axis === "relative" ? { incrs: SECONDS, values: (u, ticks) => ticks.map(duration) }
              : { values: (u, ticks, at, space, step) => ticks.map((x) => clock(step >= 86400 ? "{MM}-{DD}" : step >= 60 ? "{HH}:{mm}" : "{HH}:{mm}:{ss}", x)) }),
        },
        {
          ...axis, gap: 6, space: 36, ...(whole && !log ? { incrs: STEPS } : {}),
          ...(log ? { splits: (u, at, low, high) => marks(low, high), filter: (u, ticks) => ticks } : {}), values: (u, ticks) => ticks.map((y) => y === null ? "" : number(y)),
          size: (u, words) => Math.ceil(Math.max(24, ...(words || []).map((word) => { u.ctx.font = font; return u.ctx.measureText(word || "").width; })) + 12),
        },
      ],
      cursor: {
        y: false, dataIdx: nearest,
        // The crosshair stands on a point, except while a zoom is drawn.
        move: (u, left, top) => {
          const point = dragging || left < 0 ? left : u.valToPos(u.data[0][u.posToIdx(left)], "x");
          return [point >= 0 && point <= u.over.clientWidth ? point : left, top];
        },
        points: { size: (u, n) => isEdge(chart, n) ? 0 : 8, fill: (u, n) => colourOf(chart.of[n].line), stroke: () => colour("surface"), width: (u, n) => isEdge(chart, n) ? 0 : 1.5 },
        drag: { x: true, y: true, uni: 40, setScale: false, dist: 6 },  // across, up and down, or a box
        sync: { key: "charts " + chart.axis, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" }, setSeries: false },
        bind: {
          dblclick: () => () => { unzoom(chart); return null; },
          mousedown: (u, target, handle) => (event) => { dragging = event.button === 0; return handle(event); },
          mouseup: (u, target, handle) => (event) => { dragging = false; return handle(event); },
        },
      },
      hooks: {
        setSelect: [(u) => {
          const { left, top, width, height } = u.select;
          if (height > 5 && height < u.over.clientHeight - 1) view.tall.set(chart.key, [u.posToVal(top + height, "y"), u.posToVal(top, "y")]);
          if (width > 5) setZoom(chart, width < u.over.clientWidth - 1 ? [u.posToVal(left, "x"), u.posToVal(left + width, "x")] : view.zoom.get(chart.key));
        }],
        setCursor: [() => told(chart)],
      },
    }, data, chart.mount);
    chart.u.over.addEventListener("pointerenter", () => { hot = chart.key; });
    chart.u.over.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") { hot = null; hideTip(); } });
    byTouch(chart);
    chart.mount.setAttribute("aria-valuemax", String(data[0].length - 1));
    $("[data-plot-log]", box).setAttribute("aria-pressed", String(log));
    $("[data-plot-whole]", box).hidden = !zoom() && !tall;
    const note = $("[data-plot-beyond]", box);
    note.hidden = !far && !view.all.has(chart.key);
    $("span", note).textContent = far ? far.out.map(({ line, low, high }) => (line.label || chart.title) + " reaches " + number(high > far.high ? high : low)).slice(0, 3).join(", ") + (far.out.length > 3 ? " and " + (far.out.length - 3) + " more leave" : "") + (far.out.length > 3 ? " the chart." : ", beyond the chart.") : "";
    $("button", note).textContent = far ? "Show all of it" : "Leave outliers out";
    const undated = chart.lines.filter((line) => line.x.length && !line.times.length), untimed = $("[data-plot-note]", box);
    untimed.hidden = !byStep(chart) || view.axis === "x" || !undated.length;
    untimed.textContent = chart.lines.some((line) => line.spread) ? "Means of several runs are drawn over steps only." : chart.axis === "x" ? "The times of these numbers are not known, so they stay over steps." : "Without known times, so drawn over steps only: " + undated.map((line) => line.label).join(", ") + ".";
    if (hot === chart.key && pointer) chart.u.setCursor(pointer); else told(chart);
  }
  // Wide charts are higher. They get their height before they are drawn, so nothing moves.
  function heightOf(chart) {
    const height = chart.mount.clientWidth > 720 ? 360 : 240;
    chart.mount.style.height = height + "px";
    return height;
  }
  // Labels and lines of a log axis, between any two values; uPlot draws nine lines for each power of ten.
  function marks(low, high) {
    const [first, last] = [low, high].map((y) => Math.floor(Math.log10(y))), powers = [...Array(last - first + 1).keys()].map((n) => 10 ** (first + n));
    const inside = (last - first > 3 ? powers.filter((_, n) => n % Math.ceil(powers.length / 8) === 0) : powers.flatMap((power) => [power, 2 * power, 5 * power])).filter((y) => y >= low && y <= high);
    if (inside.length > 1) return inside;
    const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((n) => n * power).find((each) => each >= rough);
    return [...Array(6).keys()].map((n) => (Math.ceil(low / step) + n) * step).filter((y) => y <= high);
  }
  // The ends of a band, and the mean below a smoothed one, are not drawn.
  function isEdge(chart, n) {
    const { line, kind } = chart.of[n];
    return kind === "low" || kind === "high" || (kind === "value" && chart.both && Boolean(line.spread));
  }
  // A link may name a zoom that has nothing to do with the numbers.
  function within(zoom, xs) {
    const low = xs[0], high = xs[xs.length - 1], found = zoom && [Math.max(zoom[0], low), Math.min(zoom[1], high)];
    if (!xs.length) return [0, 1];
    return found && found[1] > found[0] ? found : low === high ? [low - 0.5, high + 0.5] : [low, high];
  }
  function setZoom(chart, bounds) {
    if (bounds) view.zoom.set(chart.key, bounds); else view.zoom.delete(chart.key);
    writeView();
    // The mouse's own handler is still running.
    setTimeout(() => { if (chart.box.isConnected) draw(chart); });
  }
  function unzoom(chart) {
    view.tall.delete(chart.key);
    setZoom(chart, null);
  }
  function valuesAt(chart) {
    const { idx, idxs } = chart.u.cursor, data = chart.u.data, xs = data[0], { min, max } = chart.u.scales.x;
    return chart.lines.map((line, n) => {
      const at = idx === null || idx === undefined ? null : idxs[line.at.value], shown = chart.u.series[line.at.value].show;
      const of = (kind) => at === null || at === undefined || !line.at[kind] ? undefined : data[line.at[kind]][at], value = of("value");
      // A run without a value here has that of its nearest point, which says where it is. Two times are hardly ever the same.
      const off = value === undefined ? 0 : Math.abs(xs[at] - xs[idx]), from = off > (chart.axis === "x" ? 0 : (max - min) / 100) ? " @ " + short(chart, xs[at]) : "";
      const smooth = value === undefined ? undefined : of("smooth"), mean = smooth === undefined ? value : smooth;
      // What is said of it: the value; smoothed, both; of several runs, their mean and range.
      const words = line.spread ? [number(mean) + from, number(of("low")) + " – " + number(of("high"))] : chart.both ? [number(smooth), number(value) + from] : [number(value) + from];
      return { line, n, shown, value, mean, from, words };
    });
  }
  // The last value. The mean of several runs ends with that of the longest one, which says nothing of the others.
  const ending = (line) => line.spread ? "" : line.end || number(line.y[line.y.length - 1]);
  // Writes what is under the crosshair into the legend and, for the chart that has the pointer, into the tooltip.
  function told(chart) {
    if (!chart.u) return;
    const { idx, left, top } = chart.u.cursor, off = idx === null || idx === undefined || left < 0, values = valuesAt(chart);
    // Smoothed or not, the legend has the values themselves.
    values.forEach(({ line, n, value, from }) => { chart.values[n].textContent = off || line.spread ? ending(line) : number(value) + from; });
    if (hot !== chart.key) return;
    pointer = off ? null : { left, top };
    if (off) return hideTip();
    const rows = values.filter((row) => row.shown && row.value !== undefined && row.value !== null).sort((a, b) => b.mean - a.mean);
    const x = chart.u.data[0][idx], head = place(chart, x);
    const lines = rows.slice(0, MOST_ROWS).map(({ line, words }) => [line.series, line.label || chart.title, ...words]);
    const heads = chart.lines.some((line) => line.spread) ? ["Mean", "Range"] : chart.both ? ["Smoothed", "Value"] : [];
    const frame = chart.u.over.getBoundingClientRect();
    tip(head, lines, Math.max(0, rows.length - MOST_ROWS), frame.left + left, frame.top + Math.max(0, Math.min(top, frame.height)), frame.top, heads);
    chart.mount.setAttribute("aria-valuenow", idx);
    chart.mount.setAttribute("aria-valuetext", head + ": " + rows.map(({ line, words: [first, second] }) => (line.label ? line.label + " " : "") + (line.spread ? first + " (range " + second + ")" : second ? second + " (smoothed " + first + ")" : first)).join(", "));
  }

  // --- Keys and fingers ------------------------------------------------------------------------------------------------------
  function byKey(chart, event) {
    const u = chart.u, xs = u.data[0], { min, max } = u.scales.x, turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key] * (event.shiftKey ? 10 : 1);
    const [first, last] = u.series[0].idxs, middle = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : (min + max) / 2;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (turn || event.key === "Home" || event.key === "End") {
      const at = u.cursor.left >= 0 && u.cursor.idx !== null ? u.cursor.idx + turn : turn > 0 ? first : last;
      const next = event.key === "Home" ? first : event.key === "End" ? last : Math.max(first, Math.min(last, at));
      hot = chart.key;
      u.setCursor({ left: u.valToPos(xs[next], "x"), top: 8 });
    } else if (event.key === "+" || event.key === "-") {
      const by = event.key === "+" ? 0.5 : 2;
      widen(chart, middle, by);
    } else if (event.key === "y" || event.key === "Y") {
      // As + and - across: the half, or twice as much, around the middle.
      const { min: low, max: high } = u.scales.y, log = chart.log, [from, to] = log ? [Math.log(low), Math.log(high)] : [low, high];
      const half = (to - from) * (event.key === "y" ? 0.25 : 1), found = [(from + to) / 2 - half, (from + to) / 2 + half].map((y) => log ? Math.exp(y) : y);
      if (found[0] < found[1]) { view.tall.set(chart.key, found); setZoom(chart, view.zoom.get(chart.key)); }
    } else if ((event.key === "Escape" || event.key === "0") && (view.zoom.has(chart.key) || view.tall.has(chart.key))) unzoom(chart);
    else return;
    event.preventDefault();
  }
  // Shows `by` times as much of the x axis, around `middle`; all of it is the most.
  function widen(chart, middle, by) {
    const { min, max } = chart.u.scales.x, xs = chart.u.data[0], low = middle - (middle - min) * by, high = middle + (max - middle) * by;
    const whole = low <= xs[0] && high >= xs[xs.length - 1];
    if (high > low) setZoom(chart, whole ? null : [Math.max(low, xs[0]), Math.min(high, xs[xs.length - 1])]);
  }
  function byTouch(chart) {
    const over = chart.u.over, fingers = new Map();
    let spread = 0;
    const at = (event) => event.clientX - over.getBoundingClientRect().left;
    over.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse") return;
      hot = chart.key;
      fingers.set(event.pointerId, at(event));
      spread = fingers.size === 2 ? Math.abs([...fingers.values()][0] - [...fingers.values()][1]) : 0;
    });
    over.addEventListener("pointermove", (event) => {
      if (!fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, at(event));
      if (fingers.size === 1) chart.u.setCursor({ left: Math.max(0, Math.min(at(event), over.clientWidth)), top: 8 });
    });
    const up = (event) => {
      const [one, other] = [...fingers.values()];
      if (spread && fingers.size === 2 && event.type === "pointerup") {
        const now = Math.abs(one - other);
        if (Math.abs(now - spread) > 12) widen(chart, chart.u.posToVal((one + other) / 2, "x"), spread / Math.max(now, 1));
      }
      fingers.delete(event.pointerId);
      spread = 0;
    };
    ["pointerup", "pointercancel"].forEach((type) => over.addEventListener(type, up));
  }

  // --- The tooltip ------------------------------------------------------------------------------------------------------------
  let box = null;
  // Beside the pointer; on a phone above `roof`, where neither it nor the finger covers the curve. `heads` are those of the last columns.
  function tip(head, rows, more, x, y, roof, heads = []) {
    if (!box) { box = document.createElement("div"); box.className = "plot-tip"; box.setAttribute("aria-hidden", "true"); document.body.append(box); }
    const title = document.createElement("b"), table = document.createElement("table");
    title.textContent = head;
    if (heads.length) { const row = table.insertRow(); ["", "", ...heads].forEach((text) => { row.insertCell().textContent = text; }); row.className = "muted"; }
    rows.forEach(([series, ...cells]) => {
      const row = table.insertRow(), key = row.insertCell();
      key.append(document.createElement("i"));
      key.className = "series series-" + series;
      cells.forEach((text) => { row.insertCell().textContent = text; });
    });
    box.replaceChildren(title, table);
    if (more) { const rest = document.createElement("span"); rest.textContent = "+ " + more; box.append(rest); }
    box.hidden = false;
    const width = box.offsetWidth, height = box.offsetHeight, most = window.innerWidth - width - 8, above = window.innerWidth <= 640 && roof - height > 64;
    box.style.left = Math.max(8, above ? Math.min(x - width / 2, most) : x + 16 < most ? x + 16 : x - 16 - width) + "px";
    box.style.top = Math.max(8, above ? roof - height - 4 : Math.min(y - height / 2, window.innerHeight - height - 8)) + "px";
  }
  function hideTip() { if (box) box.hidden = true; }
  document.addEventListener("scroll", hideTip, { passive: true, capture: true });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".plot-live")) { hot = null; hideTip(); } });

  // Columns, parallel coordinates and ridges: their <title> elements become the tooltip. That of a column stands above the chart, or
  // below where the window ends, because beside the pointer it would hide the neighbouring columns.
  function columnTip(thing, x, y) {
    $$("title", thing).forEach((title) => {
      title.parentNode.dataset.tip = title.textContent;
      if (thing.tagName === "a" && !thing.hasAttribute("aria-label")) thing.setAttribute("aria-label", title.textContent);
      title.remove();
    });
    const first = thing.dataset.tip ? thing : $("[data-tip]", thing);
    if (!first) return hideTip();
    const blocks = $$("[data-name]", thing).filter((block) => Number(block.getAttribute("height"))).reverse();
    tip(first.dataset.tip, blocks.map((block) => [block.getAttribute("class").replace("series-", ""), block.dataset.name, block.dataset.value]), 0, x, y);
    const plot = thing.closest(".bars");
    if (!plot) return;
    const column = $(".hit", thing).getBoundingClientRect(), chart = plot.getBoundingClientRect(), fits = chart.top - box.offsetHeight > 8;
    box.style.left = Math.max(8, Math.min(column.left + column.width / 2 - box.offsetWidth / 2, window.innerWidth - box.offsetWidth - 8)) + "px";
    box.style.top = (fits ? chart.top - box.offsetHeight - 4 : chart.bottom + 24) + "px";
  }
  const COLUMN = ".bars svg > a, .bars svg > g, .strands svg > a, .ridges svg > g";
  document.addEventListener("pointermove", (event) => {
    const thing = event.target.closest && event.target.closest(COLUMN);
    if (thing) columnTip(thing, event.clientX, event.clientY);
    else if (box && !box.hidden && !(event.target.closest && event.target.closest(".plot-live")) && event.pointerType === "mouse") hideTip();
  });
  document.addEventListener("focusin", (event) => {
    const thing = event.target.closest(COLUMN);
    if (!thing) return;
    const at = thing.getBoundingClientRect();
    columnTip(thing, at.left + at.width / 2, at.top + at.height / 3);
  });
  document.addEventListener("focusout", (event) => { if (event.target.closest(COLUMN + ", .plot-live")) { hot = null; hideTip(); } });

  // --- Parallel coordinates: a span dragged along an axis leaves the lines that cross it there --------------------------------
  const REACH = 16, SIDE = 1000;  // pixels beside an axis, and the height of the picture (portal/pages/charts.py)
  let span = null;
  function heightAt(plot, event) {
    const frame = $("svg", plot).getBoundingClientRect();
    return Math.max(0, Math.min(SIDE, (event.clientY - frame.top) / frame.height * SIDE));
  }
  function axisAt(plot, event) {
    const frame = $("svg", plot).getBoundingClientRect();
    const at = $$("svg > line", plot).map((line) => frame.left + frame.width * line.getAttribute("x1") / SIDE).findIndex((x) => Math.abs(event.clientX - x) <= REACH);
    return at < 0 ? null : { plot, at, y: heightAt(plot, event), box: null };
  }
  function sieve(plot) {
    const spans = $$(".strand-span", plot).map((each) => [each.dataset.axis, each.dataset.top, each.dataset.foot].map(Number));
    $$("svg > a", plot).forEach((line) => {
      const ys = $("path", line).getAttribute("d").match(/-?[\d.]+/g).map(Number).filter((_, n) => n % 2);
      line.classList.toggle("is-out", spans.some(([axis, top, foot]) => ys[axis] < top || ys[axis] > foot));
    });
  }
  document.addEventListener("pointerdown", (event) => {
    const plot = event.button === 0 && event.target.closest && event.target.closest(".strands");
    span = plot ? axisAt(plot, event) : null;
    if (!span) return;
    event.preventDefault();
    $$(".strand-span", plot).forEach((each) => { if (Number(each.dataset.axis) === span.at) each.remove(); });
    sieve(plot);
  });
  document.addEventListener("pointermove", (event) => {
    if (!span) return;
    const y = heightAt(span.plot, event);
    if (!span.box && Math.abs(y - span.y) < 15) return;
    if (!span.box) {
      span.box = document.createElement("div");
      span.box.className = "strand-span";
      span.plot.append(span.box);
    }
    Object.assign(span.box.dataset, { axis: span.at, top: Math.min(y, span.y), foot: Math.max(y, span.y) });
    const x = $$("svg > line", span.plot)[span.at].getAttribute("x1");
    Object.assign(span.box.style, { left: x / SIDE * 100 + "%", top: span.box.dataset.top / SIDE * 100 + "%", height: Math.abs(y - span.y) / SIDE * 100 + "%" });
    sieve(span.plot);
    hideTip();
  });
  ["pointerup", "pointercancel"].forEach((type) => document.addEventListener(type, () => { if (span) setTimeout(() => { span = null; }); }));
  // The end of a drag is no click on the line below it.
  document.addEventListener("click", (event) => { if (span && span.box) event.preventDefault(); }, true);
  document.addEventListener("dragstart", (event) => { if (event.target.closest && event.target.closest(".strands")) event.preventDefault(); });

  // --- Files -------------------------------------------------------------------------------------------------------------------
  function save(blob, file) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  const fileOf = (chart, kind) => (chart.title.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|-+$/g, "") || "chart") + "." + kind;
  function csv(chart) {
    // Spreadsheets run what begins like a formula.
    const cell = (text) => '"' + (/^[=+\-@\t\r]/.test(text) ? "'" : "") + String(text).replace(/"/g, '""') + '"';
    const told = (y) => y === null ? "NaN" : y, ends = chart.lines.some((line) => line.spread) ? ",lowest,highest" : "";
    const rows = chart.lines.flatMap((line) => line.y.map((y, n) => [cell(line.label || chart.title), line.x[n], line.times.length ? new Date((line.began + line.times[n]) * 1000).toISOString() : "", told(y), ...(line.spread ? line.spread.map((ys) => told(ys[n])) : [])].join(",")));
    save(new Blob([["line," + cell(chart.x) + ",time,value" + ends, ...rows].join("\r\n") + "\r\n"], { type: "text/csv" }), fileOf(chart, "csv"));
  }
  // As large as slides and papers want it, however small it is on the page.
  async function png(chart) {
    const { width, height } = chart.u;
    if (width < PNG.width) chart.u.setSize(PNG);
    await Promise.resolve();  // uPlot draws at the end of a task
    picture(chart);
    chart.u.setSize({ width, height });
  }
  function picture(chart) {
    const from = chart.u.ctx.canvas, ratio = from.width / chart.u.width, picture = document.createElement("canvas"), pen = picture.getContext("2d");
    const pad = 16 * ratio, shown = chart.lines.filter((line) => line.label && chart.u.series[line.at.value].show);
    const places = [];
    let x = 0, y = 0;
    pen.font = 12 * ratio + "px " + family;
    shown.forEach((line) => {
      const wide = pen.measureText(line.label).width + 36 * ratio;
      if (x && x + wide > from.width) { x = 0; y += 18 * ratio; }
      places.push([line, x, y]);
      x += wide;
    });
    const head = 28 * ratio + (shown.length ? y + 24 * ratio : 0);
    picture.width = from.width + 2 * pad;
    picture.height = from.height + head + 2 * pad;
    pen.fillStyle = colour("surface");
    pen.fillRect(0, 0, picture.width, picture.height);
    pen.textBaseline = "top";
    pen.fillStyle = colour("text");
    pen.font = "600 " + 15 * ratio + "px " + family;
    pen.fillText(chart.title, pad, pad);
    pen.font = 12 * ratio + "px " + family;
    places.forEach(([line, left, top]) => {
      pen.strokeStyle = colourOf(line);
      pen.lineWidth = 3 * ratio;
      pen.setLineDash((dashOf(line) || []).map((part) => part * ratio / 2));
      pen.beginPath();
      pen.moveTo(pad + left, pad + 28 * ratio + top + 6.5 * ratio);
      pen.lineTo(pad + left + 12 * ratio, pad + 28 * ratio + top + 6.5 * ratio);
      pen.stroke();
      pen.fillStyle = colour("text");
      pen.fillText(line.label, pad + left + 18 * ratio, pad + 28 * ratio + top);
    });
    pen.drawImage(from, pad, pad + head);
    picture.toBlob((blob) => save(blob, fileOf(chart, "png")), "image/png");
  }

  // --- From a picture to a chart ------------------------------------------------------------------------------------------------
  function upgrade(plot) {
    let said;
    try { said = JSON.parse(plot.dataset.plot); } catch (error) { return; }
    if (!said.lines.some((line) => line.x.length)) return;
    const key = said.axes[0] === "x" && said.x !== "step" ? said.title + " by " + said.x : said.title;  // two charts of a sweep have one title
    const chart = { ...said, key, box: plot, u: null, values: [] }, legend = $(".latest", plot), picture = $(".plot", plot);
    chart.mount = document.createElement("div");
    chart.mount.className = "plot-live";
    chart.mount.id = "plot-" + encodeURIComponent(chart.key);
    Object.entries({ role: "slider", tabindex: "0", "aria-label": picture.getAttribute("aria-label"), "aria-valuemin": "0", "aria-valuenow": "0", "aria-valuetext": legend.textContent.trim() })
      .forEach(([key, value]) => chart.mount.setAttribute(key, value));
    chart.mount.addEventListener("keydown", (event) => byKey(chart, event));
    chart.mount.hidden = true;
    picture.after(chart.mount);
    const keys = chart.lines.map((line, n) => {
      const key = document.createElement(line.label ? "button" : "span"), value = document.createElement("b");
      key.className = "series series-" + line.series;
      key.hidden = !line.x.length;
      if (line.label) {
        key.type = "button";
        key.dataset.line = n;
        key.id = chart.mount.id + "-" + n;
        key.setAttribute("aria-pressed", String(!view.hidden.has(name(chart, line))));
        key.append(document.createElement("i"), line.label + " ");
      }
      value.textContent = ending(line);
      key.append(value);
      chart.values.push(value);
      return key;
    });
    legend.replaceChildren(...keys);
    legend.classList.add("is-legend");
    $(".plot-actions", plot).hidden = false;
    charts.set(plot, chart);
    widths.observe(chart.mount);
    if (seen.has(chart.key) && inView(plot)) draw(chart); else near.observe(plot);
  }
  const near = new IntersectionObserver((found) => found.forEach(({ isIntersecting, target }) => {
    const chart = charts.get(target);
    if (!isIntersecting || !chart) return;
    near.unobserve(target);
    seen.add(chart.key);
    draw(chart);
  }), { rootMargin: "400px" });
  const widths = new ResizeObserver((found) => found.forEach(({ target }) => {
    const chart = charts.get(target.parentNode);
    if (chart && chart.u && target.clientWidth && target.clientWidth !== chart.u.width) { hideTip(); chart.u.setSize({ width: target.clientWidth, height: heightOf(chart) }); draw(chart); }
  }));
  const inView = (plot) => { const at = plot.getBoundingClientRect(); return at.bottom > 0 && at.top < window.innerHeight; };
  // Charts out of sight wait until they come near, so a page with forty of them follows the smoothing slider.
  function redraw() {
    charts.forEach((chart, plot) => {
      if (!chart.u) return;
      if (inView(plot)) draw(chart); else { near.unobserve(plot); near.observe(plot); }
    });
  }
  function tools() {
    const several = [...charts.values()].some((chart) => chart.axes.length > 1 || byStep(chart));
    $$("[data-chart-tools]").forEach((part) => {
      part.hidden = !charts.size;
      const [x, y, slider] = ["[data-view-x]", "[data-view-y]", "input"].map((each) => $(each, part));
      x.value = view.axis;
      x.closest("label").hidden = !several;
      y.value = view.y;
      slider.value = view.smooth;
      $("output", part).textContent = Number(slider.value).toFixed(2);
    });
    $$("[data-without-tools]").forEach((part) => { part.hidden = charts.size > 0; });
  }
  function find() {
    charts.forEach((chart, plot) => { if (!plot.isConnected) { if (chart.u) chart.u.destroy(); charts.delete(plot); } });
    $$(".plot-box[data-plot]").forEach((plot) => { if (!charts.has(plot)) upgrade(plot); });
    tools();
  }
  // A strip of images becomes one image with a slider over its steps, the newest at the right. A step that somebody chose stays when
  // newer images arrive.
  const steps = new Map();
  function project(film) {
    const label = film.previousElementSibling, slider = $("input", label), frames = $$("li", film).reverse(), last = frames.length - 1;
    if (last < 1 || film.classList.contains("is-one")) return;
    const captions = frames.map((frame) => ($("figcaption", frame) || frame).textContent.trim()), kept = captions.indexOf(steps.get(slider.ariaLabel));
    function show() {
      frames.forEach((frame, n) => { frame.hidden = n !== Number(slider.value); });
      $("output", label).textContent = captions[slider.value];
      slider.setAttribute("aria-valuetext", captions[slider.value]);
      if (Number(slider.value) === last) steps.delete(slider.ariaLabel); else steps.set(slider.ariaLabel, captions[slider.value]);
    }
    slider.max = last;
    slider.value = kept < 0 ? last : kept;
    slider.addEventListener("input", show);
    film.classList.add("is-one");
    film.removeAttribute("tabindex");
    label.hidden = false;
    show();
  }
  const projects = () => {
    $$("[data-film]").forEach(project);
    $$(".film img").forEach((image) => { image.tabIndex = 0; image.setAttribute("role", "button"); });
  };
  // An image has no address of its own, so a dialog shows it as large as the window. Where it is one step of several, its buttons and
  // arrow keys move the slider on the page.
  function enlarge(image) {
    const dialog = document.createElement("dialog"), form = document.createElement("form"), words = document.createElement("b"), film = image.closest(".film.is-one"), slider = film && $("input", film.previousElementSibling);
    const button = (text, by) => {
      const made = document.createElement("button");
      made.className = "btn";
      made.textContent = text;
      if (by) { made.type = "button"; made.addEventListener("click", () => step(by)); }
      return made;
    };
    const ways = slider ? [button("Earlier", -1), button("Later", 1)] : [];
    function show(figure) {
      const large = figure.firstElementChild.cloneNode(true);  // an image, or the link that loads it
      ["role", "tabindex"].forEach((name) => large.removeAttribute(name));
      words.textContent = large.alt || $("figcaption", figure).textContent;
      dialog.setAttribute("aria-label", words.textContent);
      ways.forEach((way, n) => { way.disabled = slider.value === (n ? slider.max : slider.min); });
      // The form stays, and with it the focus.
      if (dialog.contains(form)) form.nextElementSibling.replaceWith(large); else dialog.append(form, large);
    }
    function step(by) {
      slider.value = Number(slider.value) + by;
      slider.dispatchEvent(new Event("input"));
      show($("li:not([hidden]) figure", film));
      if (ways.some((way) => way.disabled)) dialog.focus();  // a button that can do no more hears no key
    }
    dialog.className = "film-large";
    dialog.tabIndex = -1;
    form.method = "dialog";
    form.append(words, ...ways, button("Close"));
    show(image.closest("figure"));
    dialog.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (slider && by) { event.preventDefault(); step(by); }
    });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => {
      dialog.remove();
      const back = film ? $("li:not([hidden]) img", film) : image;
      if (back && back.isConnected) back.focus();
    });
    document.body.append(dialog);
    dialog.showModal();
  }
  document.addEventListener("click", (event) => { if (event.target.matches(".film img")) enlarge(event.target); });
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches(".film img") || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    enlarge(event.target);
  });
  document.addEventListener("htmx:afterSwap", projects, true);
  document.addEventListener("DOMContentLoaded", projects);
  // Shows the charts and images whose names have all typed words, or those before or after a |, at once; the server answers with the
  // charts that were not drawn.
  function sift() {
    const field = $("[data-find-charts] [name=find]");
    if (!field) return;
    const typed = field.value.toLowerCase().split("|").map((part) => part.split(/\s+/).filter(Boolean)).filter((words) => words.length);
    const has = (title) => !typed.length || typed.some((words) => words.every((word) => title.includes(word)));
    $$("#charts .chart, #machine-charts .chart, #media .panel").forEach((chart) => { chart.hidden = !has($("h2, h3", chart).textContent.toLowerCase()); });
    $$("#machine-charts .section, #media .section").forEach((part) => { part.hidden = !$(".panel:not([hidden])", part); });
  }
  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-find-charts] [name=find]")) return;
    sift();
    const said = new URLSearchParams(location.search);
    if (event.target.value.trim()) said.set("find", event.target.value.trim()); else said.delete("find");
    history.replaceState(history.state, "", location.pathname + (said.size ? "?" + said : "") + location.hash);
    writeView();
  });
  document.addEventListener("submit", (event) => { if (event.target.matches("[data-find-charts]")) event.preventDefault(); });
  document.addEventListener("htmx:afterSwap", sift, true);

  document.addEventListener("click", (event) => {
    const plot = event.target.closest(".plot-box"), chart = plot && charts.get(plot), button = chart && event.target.closest("button");
    if (!button) return;
    if (button.dataset.line) {
      const line = name(chart, chart.lines[button.dataset.line]), hides = !view.hidden.delete(line);
      if (hides) view.hidden.add(line);
      button.setAttribute("aria-pressed", String(!hides));
    } else if ("plotLog" in button.dataset) view.log.set(chart.key, !chart.log);
    else if ("plotAll" in button.dataset) { if (!view.all.delete(chart.key)) view.all.add(chart.key); }
    else if ("plotWhole" in button.dataset) { view.zoom.delete(chart.key); view.tall.delete(chart.key); }
    else if ("plotCsv" in button.dataset) return csv(chart);
    else if ("plotPng" in button.dataset) { if (!chart.u) draw(chart); return png(chart); }
    writeView();
    draw(chart);
    if ("plotWhole" in button.dataset) chart.mount.focus();
  });
  function stress(chart, isOne) {
    chart.of.forEach((each, at) => { if (each) chart.u.series[at].alpha = isOne(each.line) ? 1 : 0.15; });
    chart.u.redraw(false);
  }
  // A line whose legend, or whose row in a table, has the pointer stands out.
  let stressed = "";
  function byRow(event) {
    const row = event.target.closest && event.target.closest("[data-curves]"), wanted = row ? row.dataset.curves : "";
    if (wanted === stressed) return;
    stressed = wanted;
    charts.forEach((chart) => {
      if (!chart.u) return;
      const has = (line) => line.label === wanted || line.label.startsWith(wanted + " ");
      stress(chart, wanted && chart.lines.some(has) ? has : () => true);
    });
  }
  document.addEventListener("pointerover", byRow);
  document.addEventListener("focusin", byRow);
  ["pointerover", "focusin", "pointerout", "focusout"].forEach((type, n) => document.addEventListener(type, (event) => {
    const key = event.target.closest && event.target.closest(".is-legend button"), chart = key && charts.get(key.closest(".plot-box"));
    if (!chart || !chart.u || chart.lines.length < 2) return;
    const one = n < 2 ? chart.lines[key.dataset.line] : null;
    stress(chart, (line) => !one || line === one);
  }));
  // A form that loads the page again with other numbers keeps the view.
  document.addEventListener("submit", (event) => {
    if (event.target.matches("[data-keeps-view]")) event.target.action = location.pathname + location.hash;
  });
  let frame = 0;
  document.addEventListener("input", (event) => {
    const part = event.target.closest("[data-chart-tools]");
    if (!part) return;
    if (event.target.matches("[data-view-x]")) { view.axis = event.target.value; view.zoom.clear(); }
    else if (event.target.matches("[data-view-y]")) { view.y = event.target.value; view.log.clear(); }
    else view.smooth = Number(event.target.value);
    tools();
    cancelAnimationFrame(frame);
    const apply = () => { writeView(); redraw(); };
    if (event.target.matches("select")) apply(); else frame = requestAnimationFrame(apply);  // a slider sends more than a screen shows
  });

  document.addEventListener("DOMContentLoaded", () => {
    if (!window.uPlot) return;
    readView();
    find();
    writeView();
    window.addEventListener("hashchange", () => { readView(); find(); redraw(); });
    new MutationObserver(() => { theme = null; charts.forEach((chart) => { if (chart.u) chart.u.redraw(false); }); })
      .observe(document.documentElement, { attributes: true, attributeFilter: ["data-scheme"] });
    // In the capturing phase, so before portal.js: a part that arrives has its charts before the focus returns into it, and a zoom that
    // is being drawn is not disturbed.
    document.addEventListener("htmx:beforeSwap", (event) => { if (dragging && event.detail.target.contains($(".plot-live"))) event.detail.shouldSwap = false; }, true);
    document.addEventListener("htmx:afterSwap", () => { find(); writeView(); }, true);
    // A filter of the page brings an address without the view.
    document.addEventListener("htmx:pushedIntoHistory", writeView);
    window.addEventListener("pointerup", () => { dragging = false; });
  });
})();
