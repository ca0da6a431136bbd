// Reads the first rows of a Parquet file in a worker. `datastores/files/pages.py` serves it with a policy that blocks every request, to
// the portal and elsewhere. It has no page and no cookies, requests bytes from the page, and returns text. The page ends it after some
// seconds (preview.js), whatever a file makes of it.
import { parquetMetadataAsync, parquetReadObjects, parquetSchema, snappyUncompress } from "../parquet/hyparquet/index.js";
import { decompressBrotli } from "../parquet/compressors/brotli.js";
import { gunzip } from "../parquet/compressors/gzip.js";
import { decompressLz4, decompressLz4Raw } from "../parquet/compressors/lz4.js";
import { decompress as decompressZstd } from "../parquet/fzstd.js";

const ROWS = 100, COLUMNS = 50, CELL = 200;
// Maximum bytes of columns to read, compressed and uncompressed. Further columns are only named.
const PACKED = 16 * 2 ** 20, UNPACKED = 128 * 2 ** 20;
const sized = (length) => {
  if (!(length <= UNPACKED)) throw new Error("a page of it is too large");
  return new Uint8Array(length);
};
const compressors = {
  SNAPPY: (input, length) => {
    const output = sized(length);
    snappyUncompress(input, output);
    return output;
  },
  GZIP: (input, length) => gunzip(input, sized(length)),
  BROTLI: decompressBrotli,
  ZSTD: (input, length) => decompressZstd(input, sized(length)),
  LZ4: (input, length) => decompressLz4(input, sized(length).length),
  // It reports an error for empty input.
  LZ4_RAW: (input, length) => length ? decompressLz4Raw(input, sized(length).length) : new Uint8Array(0),
};

const asked = new Map();
let last = 0;
function slice(start, end) {
  return new Promise((resolve, reject) => {
    asked.set(last += 1, { resolve, reject });
    postMessage({ id: last, start, end });
  });
}

function text(value) {
  if (value === null || value === undefined) return "";
  if (value instanceof Date) return value.toISOString();
  if (value instanceof Uint8Array) return value.length.toLocaleString("en") + " bytes";
  if (typeof value !== "object") return String(value).slice(0, CELL);
  const plain = (_, each) => typeof each === "bigint" ? String(each) : each instanceof Uint8Array ? each.length + " bytes" : each;
  return JSON.stringify(Array.isArray(value) ? value.slice(0, CELL) : value, plain).slice(0, CELL);
}

function kind(node) {
  const { logical_type, converted_type, type } = node.element;
  const name = logical_type?.type || converted_type || type || (node.children.length ? "STRUCT" : "");
  return String(name).toLowerCase() + (node.element.repetition_type === "REPEATED" ? " …" : "");
}

async function read(size) {
  const file = { byteLength: size, slice: (start, end = size) => slice(start < 0 ? size + start : start, end) };
  const metadata = await parquetMetadataAsync(file);
  const schema = parquetSchema(metadata).children, group = metadata.row_groups.find((each) => each.num_rows > 0);
  const shown = schema.slice(0, COLUMNS), read = [];
  let packed = 0, unpacked = 0;
  for (const node of shown) {
    const chunks = (group?.columns || []).filter((chunk) => chunk.meta_data.path_in_schema[0] === node.element.name);
    const sum = (name) => chunks.reduce((total, chunk) => total + Number(chunk.meta_data[name]), 0);
    packed += sum("total_compressed_size");
    unpacked += sum("total_uncompressed_size");
    if (packed > PACKED || unpacked > UNPACKED) break;
    read.push(node.element.name);
  }
  const wanted = Math.min(ROWS, group ? Number(group.num_rows) : 0);
  const rows = read.length && wanted ? await parquetReadObjects({ file, metadata, columns: read, rowEnd: wanted, compressors, utf8: false }) : [];
  return {
    columns: shown.map((node) => ({ name: node.element.name.slice(0, CELL), kind: kind(node), read: read.includes(node.element.name) })),
    rows: rows.slice(0, ROWS).map((row) => read.map((name) => text(row[name]))),
    total: String(metadata.num_rows),
    left: schema.length - shown.length,
  };
}

addEventListener("message", async ({ data }) => {
  if ("id" in data) {
    const { resolve, reject } = asked.get(data.id);
    asked.delete(data.id);
    return data.bytes ? resolve(data.bytes) : reject(new Error("the datastore does not answer"));
  }
  try {
    postMessage({ table: await read(data.size) });
  } catch (error) {
    postMessage({ why: String(error.message || error).slice(0, CELL) });
  }
});
