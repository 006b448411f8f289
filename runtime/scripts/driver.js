// Stands between the host and a user's script: makes events out of columns, calls the script, and
// says what it changed. Runs in the script's own engine, before the script, and keeps what it needs
// of the language, since the script may change any of it.
//
// Columns come as texts: "" for no values at all, "=" and the one value of all rows, or "|" and the
// values with UNIT between them; an empty value is a null. JSON never holds such a separator.
//
// An event is a proxy over a row that is read field by field, only when the script looks: what it
// does not look at is neither parsed nor written, and so leaves the host as it came.
(function (deterministic) {
  "use strict";
  const UNIT = "\x1f";
  const GROUP = "\x1d";
  const SECTION = "\x1e";
  const MOST_LINES = 20; // for the log, of one call
  const LONGEST_LINE = 2000;
  const MOST_FIELDS = 20; // to be warned of, of one call
  const { parse, stringify } = JSON;
  const { isArray } = Array;
  const { isSafeInteger } = Number;
  const { ownKeys, getOwnPropertyDescriptor, defineProperty, deleteProperty, has, construct } = Reflect;
  const { hasOwn, keys: keysOf } = Object;
  const { floor, imul } = Math;
  const Text = String;
  const Whole = BigInt;
  const Instant = Date;
  const wellFormed = String.prototype.toWellFormed;

  const ROW = Symbol("row");
  const ROUTE = Symbol("route");

  // --- fields of an event, in the order of its JSON ------------------------------------------------

  const asText = (text) => text;
  const asNumber = (text) => (isSafeInteger(+text) ? +text : Whole(text));
  const asTrue = () => true;
  const asJson = (text) => readSafely(text);
  // Field by field: how its text becomes a value, and whether the script may change it.
  const FIELDS = [
    ["before", null, true],
    ["after", null, true],
    ["source", (text) => watched(readSafely(text), "source"), false],
    ["op", asText, false],
    ["ts_ms", asNumber, false],
    ["transaction", (text) => watched(readSafely(text), "transaction"), false],
    ["event_id", asText, false],
    ["tenant_id", asText, false],
    ["schema_version", asText, false],
    ["schema_sequence", asNumber, false],
    ["ddl", asJson, false],
    ["trace_id", asText, false],
    ["tags", asJson, true],
    ["synthetic", asText, false],
    ["tx_end", asTrue, false],
    ["table", asText, false],
    ["timestamp", asNumber, false],
  ];
  const BEFORE = 0;
  const AFTER = 1;
  // Two more columns, by image, with what the host knows of its text: SAME when JSON.stringify would
  // give it back as it is, NARROW when it holds no integer beyond 2^53, or nothing.
  const KNOWN = FIELDS.length;
  const SAME = "1";
  const EVENT_ID = 6;
  const TAGS = 12;
  const INDEX = { __proto__: null };
  for (let f = 0; f < FIELDS.length; f++) INDEX[FIELDS[f][0]] = f;

  // What belongs to one call. A script may keep an event beyond it, which then still reads its own.
  class Call {
    constructor(rows, columns) {
      this.rows = rows;
      this.columns = columns; // the texts as they came
      this.values = []; // and what is in them, once it is asked for
      this.given = []; // the events that the script gets
      this.ids = null;
    }

    value(field, at) {
      let column = this.values[field];
      if (column === undefined) {
        const text = this.columns[field];
        if (text === "") column = null;
        else if (text[0] === "=") column = text.slice(1);
        else {
          column = text.slice(1).split(UNIT);
          if (column.length !== this.rows) throw new Error("dfc: a column does not fit its batch");
        }
        this.values[field] = column;
      }
      if (column === null) return "";
      return typeof column === "string" ? column : column[at];
    }

    withId(id) {
      if (this.ids === null) {
        this.ids = new Map();
        for (let at = this.rows - 1; at >= 0; at--) this.ids.set(this.value(EVENT_ID, at), at);
      }
      return this.ids.get(id);
    }
  }

  let now = new Call(0, []); // the call under way
  let looked = false; // the script has read a row
  let odd = false; // and one that JSON.stringify may not give back
  const strange = new Set(); // fields that a script set in vain, for one warning each

  function inVain(name) {
    if (strange.size < MOST_FIELDS) strange.add(name);
  }

  // --- rows ---------------------------------------------------------------------------------------

  const CALL = Symbol("call");
  const AT = Symbol("at");
  const LOADED = Symbol("loaded"); // bits of the fields that the row itself holds or has lost
  const ODD = Symbol("odd"); // the script has set something that may not count
  const HIDDEN = new Set([CALL, AT, LOADED, ODD]);

  function Row(call, at) {
    this[ROW] = this; // shows, so that a copy of an event still tells which one it was
    this[CALL] = call;
    this[AT] = at;
    this[LOADED] = 0;
  }
  Row.prototype = Object.prototype;

  function load(row, field) {
    row[LOADED] |= 1 << field;
    const text = row[CALL].value(field, row[AT]);
    if (text === "") {
      if (field > AFTER) return undefined;
      row[FIELDS[field][0]] = null;
      return null;
    }
    const value = field > AFTER ? FIELDS[field][1](text) : readImage(row, field, text);
    row[FIELDS[field][0]] = value;
    return value;
  }

  function loadAll(row) {
    // In order, so that a copy has its keys in the order of the event's JSON.
    const held = {};
    for (let f = 0; f < FIELDS.length; f++) {
      const name = FIELDS[f][0];
      if (!(row[LOADED] & (1 << f))) load(row, f);
      if (hasOwn(row, name)) {
        held[name] = row[name];
        delete row[name];
      }
    }
    const rest = {};
    for (const key of keysOf(row)) {
      rest[key] = row[key];
      delete row[key];
    }
    for (const key of keysOf(held)) row[key] = held[key];
    for (const key of keysOf(rest)) row[key] = rest[key];
    if (!hasOwn(row, "route")) row.route = routeThis;
  }

  const view = {
    get(row, key) {
      const value = row[key];
      if (value !== undefined) return value;
      const field = INDEX[key];
      if (field !== undefined && !(row[LOADED] & (1 << field))) return load(row, field);
      return key === "route" ? routeThis : value;
    },
    set(row, key, value) {
      const field = INDEX[key];
      if (field !== undefined) {
        row[LOADED] |= 1 << field;
        if (!FIELDS[field][2]) row[ODD] = true;
      } else row[ODD] = true;
      row[key] = value;
      return true;
    },
    has(row, key) {
      loadAll(row);
      return has(row, key) && !HIDDEN.has(key);
    },
    ownKeys(row) {
      loadAll(row);
      return ownKeys(row).filter((key) => !HIDDEN.has(key));
    },
    getOwnPropertyDescriptor(row, key) {
      loadAll(row);
      return HIDDEN.has(key) ? undefined : getOwnPropertyDescriptor(row, key);
    },
    defineProperty(row, key, descriptor) {
      loadAll(row);
      row[ODD] = true;
      return defineProperty(row, key, descriptor);
    },
    deleteProperty(row, key) {
      loadAll(row);
      return deleteProperty(row, key);
    },
    preventExtensions() {
      return false;
    },
  };

  // A part of the event that a script may read, while what it sets there is for its own eyes only.
  function watched(value, name) {
    return new Proxy(value, {
      set(target, key, item) {
        inVain(name + "." + Text(key));
        target[key] = item;
        return true;
      },
    });
  }

  // --- routing ------------------------------------------------------------------------------------

  function routeThis(options) {
    route(this, options);
  }

  function route(target, options) {
    if (target === null || typeof target !== "object") throw new TypeError("route: not an event");
    if (options === null || typeof options !== "object") {
      throw new TypeError("route: expects {topic, key, headers, raw_payload}");
    }
    const chosen = {};
    for (const name of keysOf(options)) {
      const value = options[name];
      if (name === "headers") {
        if (value === null || value === undefined) continue;
        if (typeof value !== "object" || isArray(value)) {
          throw new TypeError("route: headers must be an object");
        }
        const headers = {};
        for (const header of keysOf(value)) {
          const text = scalar(value[header], "header " + header);
          if (text !== null) defineProperty(headers, header, {
            value: text, enumerable: true, writable: true, configurable: true,
          });
        }
        chosen.headers = stringify(headers); // a text: the host passes it on as it is
      } else if (name === "raw_payload") {
        if (value === null || value === undefined) continue;
        if (typeof value !== "boolean") throw new TypeError("route: raw_payload must be true or false");
        chosen.raw_payload = value;
      } else if (name === "topic" || name === "key") {
        const text = scalar(value, name);
        if (text !== null) chosen[name] = text;
      } else inVain("route." + name);
    }
    const row = target[ROW];
    const event = row !== undefined && row[CALL].given[row[AT]] === target ? row : target;
    event[ROUTE] = stringify(chosen);
  }

  function scalar(value, what) {
    switch (typeof value) {
      case "string":
        return wellFormed.call(value); // half a surrogate pair has no place outside of JSON
      case "number":
      case "bigint":
      case "boolean":
        return Text(value);
      case "undefined":
        return null;
      default:
        if (value === null) return null;
        throw new TypeError("route: " + what + " must be text");
    }
  }

  // --- images: what is read, and how it is written again -------------------------------------------

  // Most rows are what JSON.stringify makes of them. Others hold integers beyond 2^53, numbers such as
  // 1.00, keys such as "10" that the language would put first, keys that come twice, escapes or spaces
  // of another hand. What a script leaves alone in those is written as it was.
  const MARK = "~" + floor(Math.random() * 2 ** 52).toString(36) + "~"; // no row will hold it by chance
  const MARKED = new RegExp('"' + MARK + '(-?[0-9]+)"', "g");
  const WIDE = /[0-9]{16}/;
  const WIDE_OR_STRING = /"(?:[^"\\]|\\.)*"|(?<![0-9.eE+-])-?[0-9]{16,}(?![0-9.eE])/g;
  const NUMBER = /^(0|[1-9][0-9]*)$/;
  const STRING = /"(?:[^"\\]|\\.)*"/y;
  const SCALAR = /[^\s,\]}]+/y;
  const SPACE = /[ \t\r\n]*/y;
  const PLAIN = /[^"{}[\]]*/y;
  const origins = new WeakMap(); // an image that was read -> its text

  function readImage(row, field, text) {
    looked = true;
    const known = row[CALL].value(KNOWN + field, row[AT]);
    const value = known === "" ? readSafely(text) : parse(text);
    if (known !== SAME && value !== null && typeof value === "object") {
      origins.set(value, text);
      odd = true;
    }
    return value;
  }

  // JSON.parse, but that integers it would round are of the BigInt kind.
  function readSafely(text) {
    if (!WIDE.test(text)) return parse(text);
    let wide = false;
    const marked = text.replace(WIDE_OR_STRING, (token) => {
      if (token[0] === '"' || isSafeInteger(+token)) return token;
      wide = true;
      return '"' + MARK + token + '"';
    });
    return wide ? widened(parse(marked)) : parse(text);
  }

  function widened(value) {
    if (typeof value === "string") return value.startsWith(MARK) ? Whole(value.slice(MARK.length)) : value;
    if (value !== null && typeof value === "object") {
      for (const key of keysOf(value)) {
        const item = value[key];
        const better = widened(item);
        if (better !== item) value[key] = better;
      }
    }
    return value;
  }

  // JSON.stringify, but that a BigInt is a number. A script's own JSON.stringify shows it as text.
  let emitting = false;
  let marks = 0;
  defineProperty(BigInt.prototype, "toJSON", {
    value() {
      if (!emitting) return Text(this);
      marks++;
      return MARK + Text(this);
    },
    writable: true,
    configurable: true,
  });

  function print(value) {
    emitting = true;
    marks = 0;
    try {
      const text = stringify(value);
      return marks ? text.replace(MARKED, "$1") : text;
    } finally {
      emitting = false;
    }
  }

  // The text of an image that left as `value` and came as `text`; `text` itself when it is the same.
  function imageText(value, name, text, known) {
    if (value === null || value === undefined) return "";
    const plain = print(value);
    if (plain === text) return text;
    if (known !== SAME && text !== "" && plain === print(readSafely(text))) return text;
    if (typeof value !== "object" || isArray(value) || plain === undefined || plain[0] !== "{") {
      throw new TypeError(name + " must be an object or null");
    }
    return odd ? write(value, text) : plain;
  }

  // Prints a value, with those parts of `old` that it still holds as they stand there.
  function write(value, old) {
    if (value === null || typeof value !== "object" || typeof value.toJSON === "function") {
      return sameScalar(value, old) ? old : print(value);
    }
    const origin = origins.get(value);
    const text = origin === undefined ? old : origin;
    const list = isArray(value);
    if (text !== undefined && text[0] === (list ? "[" : "{")) {
      const plain = print(value);
      if (plain === text || plain === print(readSafely(text))) return text;
      return list ? writeList(value, items(text)) : writeObject(value, members(text), origin !== undefined);
    }
    return list ? writeList(value, []) : writeObject(value, new Map(), false);
  }

  function writeList(value, old) {
    const parts = [];
    for (let i = 0; i < value.length; i++) parts.push(write(value[i], old[i]) || "null");
    return "[" + parts.join(",") + "]";
  }

  function writeObject(value, old, itself) {
    let keys = keysOf(value);
    // Of a copy, only the order that the language itself has changed is put right.
    if (itself || (keys.length && NUMBER.test(keys[0]))) {
      const known = [...old.keys()].filter((key) => hasOwn(value, key));
      const before = new Set(known);
      keys = known.concat(keys.filter((key) => !before.has(key)));
    }
    const parts = [];
    for (const key of keys) {
      const text = write(value[key], old.get(key));
      if (text !== undefined) parts.push(stringify(key) + ":" + text);
    }
    return "{" + parts.join(",") + "}";
  }

  function sameScalar(value, old) {
    if (old === undefined) return false;
    switch (typeof value) {
      case "string":
        return old[0] === '"' && parse(old) === value;
      case "number":
        return old[0] !== '"' && +old === value;
      case "bigint":
        return old === Text(value);
      default:
        return false; // true, false and null are written in one way only
    }
  }

  // The texts of an object's members by key, in order; of a key that comes twice, the last.
  function members(text) {
    const found = new Map();
    let at = skip(SPACE, text, 1);
    while (text[at] !== "}") {
      let end = skip(STRING, text, at);
      const key = parse(text.slice(at, end));
      at = skip(SPACE, text, skip(SPACE, text, end) + 1);
      end = valueEnd(text, at);
      found.set(key, text.slice(at, end));
      at = skip(SPACE, text, end);
      if (text[at] === ",") at = skip(SPACE, text, at + 1);
    }
    return found;
  }

  function items(text) {
    const found = [];
    let at = skip(SPACE, text, 1);
    while (text[at] !== "]") {
      const end = valueEnd(text, at);
      found.push(text.slice(at, end));
      at = skip(SPACE, text, end);
      if (text[at] === ",") at = skip(SPACE, text, at + 1);
    }
    return found;
  }

  function skip(pattern, text, at) {
    pattern.lastIndex = at;
    pattern.test(text);
    return pattern.lastIndex;
  }

  function valueEnd(text, at) {
    if (text[at] === '"') return skip(STRING, text, at);
    if (text[at] !== "{" && text[at] !== "[") return skip(SCALAR, text, at);
    let depth = 0;
    for (;;) {
      const c = text[at];
      if (c === '"') at = skip(STRING, text, at);
      else {
        if (c === "{" || c === "[") depth++;
        else if (--depth === 0) return at + 1;
        at++;
      }
      at = skip(PLAIN, text, at);
    }
  }

  // --- the log ------------------------------------------------------------------------------------

  let lines = [];
  let unsaid = 0;

  function say(level) {
    return function (...parts) {
      if (lines.length >= MOST_LINES) {
        unsaid++;
        return;
      }
      const text = parts
        .map((part) => {
          if (typeof part === "string") return part;
          if (part instanceof Error) return Text(part);
          try {
            const told = print(part);
            return told === undefined ? Text(part) : told;
          } catch (error) {
            return typeof part;
          }
        })
        .join(" ");
      lines.push([level, text.slice(0, LONGEST_LINE)]);
    };
  }

  // --- one call -----------------------------------------------------------------------------------

  let script = null;
  let single = false; // the script takes one event, not a list
  let current = -1; // the event that a script of that kind is at

  function bind(found, completion) {
    if (typeof found === "function") script = found;
    else if (typeof completion === "function") {
      script = completion;
      single = true;
    } else return "no function";
    return "";
  }

  function returned(result, given) {
    if (result === null || result === undefined) return given;
    if (isArray(result)) return result;
    if (typeof result !== "object") {
      throw new TypeError("the script returned a " + typeof result + " where events are expected");
    }
    if (typeof result.then === "function") {
      throw new TypeError("the script returned a promise, and nothing can be waited for");
    }
    return [result];
  }

  function call(count, ...texts) {
    now = new Call(count, texts);
    lines = [];
    unsaid = 0;
    current = -1;
    looked = odd = false;
    strange.clear();
    try {
      // Joined rather than added up: the host takes no text that is still in pieces.
      return ["+", run(), SECTION, told(false)].join("");
    } catch (error) {
      return ["!", told(true, error)].join("");
    }
  }

  function told(failed, error) {
    const news = { lines, unsaid, fields: [...strange], looked };
    if (failed) {
      let what = "";
      let stack = "";
      try {
        what = error instanceof Error ? error.name + ": " + error.message : "thrown: " + Text(error);
        stack = Text((error && error.stack) || "");
        if (stack.startsWith(what)) stack = stack.slice(what.length); // it may speak of lines too
      } catch (worse) {
        what = "an error that does not tell what it is";
      }
      news.error = what;
      news.stack = stack;
      news.at = current;
    }
    return stringify(news);
  }

  function run() {
    const out = [];
    const { given, rows } = now;
    for (let at = 0; at < rows; at++) given.push(new Proxy(new Row(now, at), view));
    // The script may change the list, and so gets one of its own.
    const list = given.slice();
    if (!single && !deterministic) collect(out, returned(script(list), list), 0);
    else {
      for (current = 0; current < rows; current++) {
        const one = given[current];
        if (deterministic) reseed(now.value(EVENT_ID, current), +now.value(INDEX.ts_ms, current));
        // Of one event, nothing means that it is dropped; of a batch, that it stays as it is.
        const nothing = single ? [] : [one];
        collect(out, returned(single ? script(one) : script([one]), nothing), current);
      }
      current = -1;
    }
    return encode(out);
  }

  // Adds each event that the script gave back with the place of the event that it is, or is made of.
  function collect(out, items, parent) {
    const found = [];
    for (let i = 0; i < items.length; i++) {
      const item = items[i];
      if (item === null || item === undefined) continue;
      if (typeof item !== "object") {
        throw new TypeError("the script returned a " + typeof item + " among the events");
      }
      found.push(item, placeOf(item));
    }
    // What tells nothing of its event stands beside it: behind it, unless the script put such first.
    if (found.length && found[1] < 0) {
      for (let i = found.length - 1, next = -1; i > 0; i -= 2) {
        if (found[i] < 0) found[i] = next;
        next = found[i];
      }
    }
    for (let i = 0, last = parent; i < found.length; i += 2) {
      if (found[i + 1] >= 0) last = found[i + 1];
      out.push(found[i], last);
    }
  }

  function placeOf(item) {
    const row = item[ROW];
    if (row !== undefined) return row[CALL] === now ? row[AT] : -1;
    if (typeof item.event_id !== "string") return -1;
    const at = now.withId(item.event_id);
    if (at === undefined) inVain("event_id");
    return at === undefined ? -1 : at;
  }

  function encode(out) {
    const count = out.length / 2;
    const parents = [];
    const fresh = [];
    const kept = new Array(now.rows).fill(-1); // by row: the output that keeps its identity
    let same = count === now.rows;
    for (let i = 0; i < count; i++) {
      const item = out[2 * i];
      const parent = out[2 * i + 1];
      parents.push(parent);
      if (parent !== i) same = false;
      const holder = kept[parent];
      // The event itself comes before a copy of it, wherever they stand; of copies, the first.
      if (item === now.given[parent]) {
        if (holder < 0 || out[2 * holder] !== item) kept[parent] = i;
      } else if (holder < 0 && placeOf(item) === parent) kept[parent] = i;
    }
    const before = new Changes();
    const after = new Changes();
    const tags = new Changes();
    const routing = new Changes();
    for (let i = 0; i < count; i++) {
      const item = out[2 * i];
      const parent = out[2 * i + 1];
      if (kept[parent] !== i) fresh.push(i);
      const row = item === now.given[parent] ? item[ROW] : null;
      const held = row === null ? -1 : row[LOADED]; // what is not held is as it came
      if (held & (1 << BEFORE)) put(before, i, item.before, "before", BEFORE, parent);
      if (held & (1 << AFTER)) put(after, i, item.after, "after", AFTER, parent);
      if (held & (1 << TAGS)) tags.add(i, tagsText(item.tags));
      if (typeof item[ROUTE] === "string") routing.add(i, item[ROUTE]);
      if (row === null || row[ODD]) look(row || item, parent);
    }
    return [
      same ? "" : "|" + parents.join(),
      fresh.join(),
      before.text(),
      after.text(),
      tags.text(),
      routing.text(),
    ].join(SECTION);
  }

  function put(changes, i, value, name, field, parent) {
    const old = now.value(field, parent);
    const text = imageText(value, name, old, now.value(KNOWN + field, parent));
    if (text !== old) changes.add(i, text);
  }

  class Changes {
    constructor() {
      this.at = [];
      this.texts = [];
    }
    add(i, text) {
      this.at.push(i);
      this.texts.push(text);
    }
    text() {
      return this.at.join() + GROUP + this.texts.join(UNIT);
    }
  }

  function tagsText(value) {
    if (value === null || value === undefined) return "";
    if (!isArray(value)) throw new TypeError("tags must be a list of texts");
    for (let i = 0; i < value.length; i++) {
      if (typeof value[i] !== "string") throw new TypeError("tags must be a list of texts");
    }
    return stringify(value);
  }

  // Notes the fields of an event that will not leave with it.
  function look(item, parent) {
    for (const key of keysOf(item)) {
      const field = INDEX[key];
      if (field === undefined) {
        if (key !== "route") inVain(key);
      } else if (!FIELDS[field][2]) {
        const text = now.value(field, parent);
        const value = item[key];
        if (value === null || value === undefined) {
          if (text !== "") inVain(key);
        } else if (typeof value !== "object") {
          if (text === "" || Text(value) !== Text(FIELDS[field][1](text))) inVain(key);
        }
      }
    }
  }

  // --- the same again on a replay -------------------------------------------------------------------

  let clock = 0;
  let seed = 0;

  function reseed(id, ts_ms) {
    clock = ts_ms;
    seed = 2166136261;
    for (let i = 0; i < id.length; i++) seed = imul(seed ^ id.charCodeAt(i), 16777619);
  }

  function random() {
    // mulberry32: small, and good enough for samples and jitter.
    seed = (seed + 0x6d2b79f5) | 0;
    let t = imul(seed ^ (seed >>> 15), seed | 1);
    t ^= t + imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }

  function define(name, value) {
    defineProperty(globalThis, name, { value, writable: true, configurable: true });
  }

  function takeAway(name) {
    if (!deleteProperty(globalThis, name)) globalThis[name] = undefined;
  }

  if (deterministic) {
    const Fixed = function Date(...parts) {
      if (!new.target) return new Instant(clock).toString();
      return construct(Instant, parts.length ? parts : [clock], new.target);
    };
    Fixed.prototype = Instant.prototype;
    defineProperty(Instant.prototype, "constructor", { value: Fixed, writable: true, configurable: true });
    Fixed.now = () => clock;
    Fixed.parse = Instant.parse;
    Fixed.UTC = Instant.UTC;
    define("Date", Fixed);
    defineProperty(Math, "random", { value: random, writable: true, configurable: true });
    // Clocks, and windows onto the garbage collector's.
    ["performance", "WeakRef", "FinalizationRegistry", "Intl", "Temporal"].forEach(takeAway);
  }
  // What engines bring along beside the language itself.
  [
    ...["print", "std", "os", "bjson", "scriptArgs", "gc", "navigator", "WebAssembly"],
    ...["SharedArrayBuffer", "Atomics", "setTimeout", "clearTimeout", "__timer_manager"],
  ].forEach(takeAway);
  define("route", route);
  define("console", {
    log: say("info"),
    info: say("info"),
    debug: say("info"),
    warn: say("warning"),
    error: say("error"),
  });
  return { bind, call };
})
