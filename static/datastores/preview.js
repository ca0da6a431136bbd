// Shows the first rows of a Parquet file. A worker without network access reads the file (parquet.js). This script fetches its bytes, up
// to a limit, and puts the result into a table as text.
(function () {
  "use strict";
  const place = document.getElementById("parquet");
  if (!place) return;
  const SECONDS = 20, BYTES = 48 * 2 ** 20;
  const worker = new Worker(place.dataset.worker, { type: "module" });
  const late = setTimeout(() => end("It takes too long to be read."), SECONDS * 1000);
  // One at a time, because a user may have only few transfers at once.
  let fetched = 0, line = Promise.resolve();

  function end(sentence) {
    clearTimeout(late);
    worker.terminate();
    if (sentence) place.querySelector("p").textContent = sentence;
  }

  async function bytes(start, end) {
    fetched += end - start;
    if (!(start >= 0 && end > start) || fetched > BYTES) return null;
    const answer = await fetch(place.dataset.file, { headers: { Range: "bytes=" + start + "-" + (end - 1) } });
    // 200 if the part is the whole file.
    const found = answer.ok ? await answer.arrayBuffer() : null;
    return found && found.byteLength === end - start ? found : null;
  }

  function cell(kind, text, title) {
    const made = document.createElement(kind);
    made.textContent = text;
    if (title) made.title = title;
    return made;
  }

  function show({ columns, rows, total, left }) {
    const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    const wrap = document.createElement("div"), read = columns.filter((column) => column.read), unread = columns.filter((column) => !column.read);
    table.className = "data";
    wrap.className = "table-wrap preview-table";
    read.forEach((column) => {
      const made = cell("th", column.name), kind = cell("span", column.kind);
      kind.className = "muted preview-kind";
      made.append(kind);
      head.append(made);
    });
    rows.forEach((row) => row.reduce((line, text) => { line.append(cell("td", text, text)); return line; }, body.insertRow()));
    wrap.append(table);
    const more = unread.map((column) => column.name + " (" + column.kind + ")").join(", ");
    place.querySelector("p").textContent = Number(total).toLocaleString("en") + " rows; the first " + rows.length + " are shown." +
      (more ? " Not read, because they are large: " + more + "." : "") + (left ? " There are " + left + " more columns." : "");
    place.append(wrap);
  }

  worker.addEventListener("error", () => end("It cannot be read here."));
  worker.addEventListener("message", async ({ data }) => {
    if (data.table) {
      end("");
      show(data.table);
    } else if ("id" in data) {
      line = line.then(() => bytes(data.start, data.end)).catch(() => null);
      const found = await line;
      worker.postMessage({ id: data.id, bytes: found }, found ? [found] : []);
    } else end("It is called like a Parquet file and cannot be read: " + data.why);
  });
  worker.postMessage({ size: Number(place.dataset.size) });
})();
