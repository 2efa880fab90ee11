// Perfetto's trace processor behind a pipe: `node trace_processor.mjs ENGINE_DIRECTORY TRACE`.
//
// ENGINE_DIRECTORY has the web worker of Perfetto's UI: engine_bundle.js and its WebAssembly. It
// runs here in a context that has what it uses of a browser. The first line on stdout is {} when
// the trace was read. Then a line on stdin is an SQL query as a JSON string, and the line that
// answers it {"columns": [...], "rows": [[...], ...]}. Instead of either there is {"error": "..."}.
// Messages are those of protos/perfetto/trace_processor/trace_processor.proto in Perfetto.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setFlagsFromString } from "node:v8";
import { createContext, runInContext } from "node:vm";

setFlagsFromString("--liftoff-only"); // optimising takes a second, short traces do not

// --- protobuf -----------------------------------------------------------------------------------

const VARINT = 0;
const BYTES = 2;

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
  return Uint8Array.from([...bytes, value]);
}

// A field of a message; `value` is a whole number or bytes.
function field(number, value) {
  if (typeof value === "number") return Buffer.concat([varint(number * 8 + VARINT), varint(value)]);
  return Buffer.concat([varint(number * 8 + BYTES), varint(value.length), value]);
}

// The signed number of 64 bits at `at`, and where it ends.
function readVarint(bytes, at) {
  let value = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = bytes[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [BigInt.asIntN(64, value), at];
  }
}

function readVarints(bytes) {
  const values = [];
  for (let at = 0, value; at < bytes.length; values.push(value))
    [value, at] = readVarint(bytes, at);
  return values;
}

function readDoubles(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Array.from({ length: bytes.length / 8 }, (_, k) => view.getFloat64(8 * k, true));
}

const readText = (bytes) => Buffer.from(bytes).toString("utf8");

// {number: [value, ...]} of a message, values as bigint or bytes. Doubles are left out: the only
// ones of their own say how long a query took.
function fieldsOf(message) {
  const found = {};
  for (let at = 0; at < message.length; ) {
    let key, value, length;
    [key, at] = readVarint(message, at);
    const kind = Number(key & 7n);
    if (kind === VARINT) {
      [value, at] = readVarint(message, at);
    } else {
      [length, at] = kind === BYTES ? readVarint(message, at) : [8n, at];
      value = message.subarray(at, (at += Number(length)));
    }
    (found[key >> 3n] ??= []).push(value);
  }
  return found;
}

// --- the worker ---------------------------------------------------------------------------------

// What the worker loads lies beside it.
function requestsIn(directory) {
  return class {
    open(_method, name) {
      this.path = join(directory, name);
    }
    send() {
      this.response = readFileSync(this.path);
    }
  };
}

// The worker's end of its message port: it takes messages by `onmessage`, and answers before that
// returns, by `postMessage`.
async function startWorker(directory, postMessage) {
  const self = { location: { href: "file:///" } };
  const console = { log() {}, warn() {}, error: globalThis.console.error };
  const XMLHttpRequest = requestsIn(directory);
  const browser = { self, console, WorkerGlobalScope: Object, XMLHttpRequest };
  const given = { Uint8Array, URL, TextDecoder, performance };
  const script = readFileSync(join(directory, "engine_bundle.js"), "utf8");
  runInContext(script, createContext({ ...browser, ...given }));
  const port = { postMessage };
  self.onmessage({ data: port });
  await new Promise((resolve) => setTimeout(resolve)); // the worker is ready behind a promise
  return port;
}

// --- remote procedure calls ---------------------------------------------------------------------

const APPEND_TRACE_DATA = { request: 1, argument: 101, result: 201, error: 2 };
const FINALIZE_TRACE_DATA = { request: 2, result: 212, error: 1 };
const QUERY_STREAMING = { request: 3, argument: 103, result: 203, error: 2 };
const PIECE_BYTES = 16 << 20;

class TraceProcessor {
  #port;
  #answers = [];

  static async start(directory) {
    const processor = new TraceProcessor();
    const keep = (bytes) => processor.#answers.push(bytes);
    processor.#port = await startWorker(directory, keep);
    return processor;
  }

  // The results of a call, each as `fieldsOf` it; at least one. Throws the error it has.
  #call(method, argument) {
    const given = argument === undefined ? [] : [field(method.argument, argument)];
    const message = Buffer.concat([field(2, method.request), ...given]);
    this.#answers = [];
    this.#port.onmessage({ data: new Uint8Array(field(1, message)) });
    const envelopes = fieldsOf(Buffer.concat(this.#answers))[1].map(fieldsOf);
    return envelopes.map((envelope) => {
      if (envelope[5]) throw new Error(readText(envelope[5][0]));
      const result = fieldsOf(envelope[method.result][0]);
      if (result[method.error]) throw new Error(readText(result[method.error][0]));
      return result;
    });
  }

  load(trace) {
    for (let at = 0; at < trace.length; at += PIECE_BYTES)
      this.#call(APPEND_TRACE_DATA, trace.subarray(at, at + PIECE_BYTES));
    this.#call(FINALIZE_TRACE_DATA);
  }

  query(sql) {
    const results = this.#call(QUERY_STREAMING, field(1, Buffer.from(sql)));
    const columns = (results[0][1] ?? []).map(readText);
    const cells = results.flatMap((result) => (result[3] ?? []).flatMap(cellsOf));
    const rows = [];
    for (let at = 0; at < cells.length; at += columns.length)
      rows.push(cells.slice(at, at + columns.length));
    return { columns, rows };
  }
}

// The cells of a batch, row by row; it has what kind each is of, and apart the values of each kind.
function cellsOf(batch) {
  const parts = fieldsOf(batch);
  const bytesOf = (number) => Buffer.concat(parts[number] ?? []);
  const values = {
    2: readVarints(bytesOf(2)),
    3: readDoubles(bytesOf(3)),
    4: readText(bytesOf(5)).split("\0"),
  };
  const at = { 2: 0, 3: 0, 4: 0 };
  return readVarints(bytesOf(1)).map((kind) => {
    if (kind === 1n) return null;
    if (!(kind in values)) throw new Error(`a cell of kind ${kind}`);
    return values[kind][at[kind]++];
  });
}

// --- the pipe -----------------------------------------------------------------------------------

// JSON with whole numbers of 64 bits; other numbers keep a point.
function json(value) {
  if (typeof value === "bigint") return `${value}`;
  if (Number.isInteger(value)) return value.toExponential();
  if (Array.isArray(value)) return `[${value.map(json).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}:${json(v)}`).join(",")}}`;
}

function answer(make) {
  let found;
  try {
    found = make() ?? {};
  } catch (error) {
    found = { error: error.message };
  }
  process.stdout.write(`${json(found)}\n`);
}

const [directory, trace] = process.argv.slice(2);
const processor = await TraceProcessor.start(directory);
answer(() => processor.load(readFileSync(trace)));
for await (const line of createInterface({ input: process.stdin }))
  answer(() => processor.query(JSON.parse(line)));
