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
  const { parse, stringify } = JSON;
  const { isArray } = Array;
  const { isSafeInteger } = Number;
  const { ownKeys, getOwnPropertyDescriptor, defineProperty, deleteProperty, has } = Reflect;
  const { hasOwn, keys: keysOf } = Object;
  const { floor, imul } = Math;
  const Text = String;
  const Whole = BigInt;
  const Instant = Date;

  const ROW = Symbol("row");
  const ROUTE = Symbol("route");

  // --- fields of an event, in the order of its JSON ------------------------------------------------

  const asText = (text) => text;
  const asNumber = (text) => +text;
  const asTrue = () => true;
  const asJson = (text) => parse(text);
  // Field by field: how its text becomes a value, and whether the script may change it.
  const FIELDS = [
    ["before", null, true],
    ["after", null, true],
    ["source", (text) => watched(parse(text), "source"), false],
    ["op", asText, false],
    ["ts_ms", asNumber, false],
    ["transaction", (text) => watched(parse(text), "transaction"), false],
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
  // Two more columns, by image: whether the host knows that JSON.stringify gives its text back.
  const SURE = FIELDS.length;
  const EVENT_ID = 6;
  const TAGS = 12;
  const INDEX = { __proto__: null };
  for (let f = 0; f < FIELDS.length; f++) INDEX[FIELDS[f][0]] = f;

  let columns = []; // of this call: the texts as they came, and their values once they are asked for
  let values = [];
  let rows = 0;
  let targets = []; // behind the proxies
  let looked = false; // the script has read a row
  const strange = new Set(); // fields that a script set in vain, for one warning each

  function valueAt(field, row) {
    let column = values[field];
    if (column === undefined) {
      const text = columns[field];
      if (text === "") column = null;
      else if (text[0] === "=") column = text.slice(1);
      else {
        column = text.slice(1).split(UNIT);
        if (column.length !== rows) throw new Error("dfc: a column does not fit its batch");
      }
      values[field] = column;
    }
    if (column === null) return "";
    return typeof column === "string" ? column : column[row];
  }

  const LOADED = Symbol("loaded"); // bits of the fields that the row itself holds or has lost
  const ODD = Symbol("odd"); // the script has set something that may not count
  const NOTES = Symbol("notes");
  const HIDDEN = new Set([ROW, LOADED, ODD, NOTES]);

  function load(row, field) {
    row[LOADED] |= 1 << field;
    const text = valueAt(field, row[ROW]);
    if (text === "") {
      if (field > AFTER) return undefined;
      row[FIELDS[field][0]] = null;
      return null;
    }
    const value = field > AFTER ? FIELDS[field][1](text) : readRow(row, field, text);
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
      if (key === ROW) return row;
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

  function Row(index) {
    this[ROW] = index;
    this[LOADED] = 0;
  }
  Row.prototype = Object.prototype;

  // A part of the event that a script may read, while what it sets there is for its own eyes only.
  function watched(value, name) {
    return new Proxy(value, {
      set(target, key, item) {
        strange.add(name + "." + Text(key));
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
      } else strange.add("route." + name);
    }
    const text = stringify(chosen);
    const row = target[ROW];
    if (row !== undefined) row[ROUTE] = text;
    else target[ROUTE] = text;
  }

  function scalar(value, what) {
    switch (typeof value) {
      case "string":
        return value;
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

  // --- rows whose text JSON.stringify would not give back -----------------------------------------

  // Integers beyond 2^53, numbers such as 1.00, keys such as "10" that the language would put first,
  // keys that come twice, escapes and spaces of another hand: such rows are read with notes of how
  // each part was written, and whatever the script leaves alone is written that way again.
  const NUMBER = /^(0|[1-9][0-9]*)$/;
  const notes = new WeakMap(); // object or array -> {text, image, keys, raw}

  function readRow(row, field, text) {
    looked = true;
    const value = parse(text);
    if (valueAt(SURE + field, row[ROW]) !== "" || stringify(value) === text) return value;
    const noted = readNoted(text);
    const all = row[NOTES] || (row[NOTES] = []);
    if (noted !== null && typeof noted === "object") all[field] = notes.get(noted);
    return noted;
  }

  function readNoted(text) {
    let at = 0;

    function space() {
      for (;;) {
        const c = text.charCodeAt(at);
        if (c !== 32 && c !== 10 && c !== 13 && c !== 9) return;
        at++;
      }
    }

    function stringToken() {
      const begin = at++;
      for (;;) {
        const c = text.charCodeAt(at++);
        if (c === 92) at++;
        else if (c === 34) return text.slice(begin, at);
      }
    }

    function put(target, note, key) {
      const begin = at;
      const value = read();
      defineProperty(target, key, { value, enumerable: true, writable: true, configurable: true });
      if (value === null || typeof value !== "object") {
        const raw = text.slice(begin, at);
        if (literal(value) !== raw) note.raw.set(Text(key), [value, raw]);
        else note.raw.delete(Text(key));
      }
    }

    function read() {
      const first = text[at];
      if (first === "{" || first === "[") {
        const begin = at++;
        const list = first === "[";
        const target = list ? [] : {};
        const note = { text: "", image: "", keys: [], raw: new Map(), like: null };
        space();
        for (let i = 0; text[at] !== "}" && text[at] !== "]"; i++) {
          if (list) put(target, note, i);
          else {
            const key = parse(stringToken());
            space();
            at++;
            space();
            if (!hasOwn(target, key)) note.keys.push(key);
            put(target, note, key);
          }
          space();
          if (text[at] === ",") at++;
          space();
        }
        note.text = text.slice(begin, ++at);
        note.image = image(target);
        note.like = target;
        notes.set(target, note);
        return target;
      }
      if (first === '"') return parse(stringToken());
      if (first === "t" || first === "n") return (at += 4), first === "t" ? true : null;
      if (first === "f") return (at += 5), false;
      const begin = at;
      while (at < text.length && "+-.0123456789eE".includes(text[at])) at++;
      const token = text.slice(begin, at);
      const number = +token;
      return !isSafeInteger(number) && /^-?[0-9]+$/.test(token) ? Whole(token) : number;
    }

    space();
    return read();
  }

  // A script's own JSON.stringify shows a wide integer as text; in a row it stays a number, which
  // takes our own writer.
  const WIDE = new TypeError("a wide integer");
  let emitting = false;
  defineProperty(BigInt.prototype, "toJSON", {
    value() {
      if (emitting) throw WIDE;
      return Text(this);
    },
    writable: true,
    configurable: true,
  });

  function literal(value) {
    return typeof value === "bigint" ? Text(value) : stringify(value);
  }

  // What a value is, for telling whether a script has changed it.
  function image(value) {
    return write(value, null, true);
  }

  function written(value, note) {
    if (note === undefined) {
      emitting = true;
      try {
        return stringify(value);
      } catch (error) {
        if (error !== WIDE) throw error;
      } finally {
        emitting = false;
      }
    }
    return write(value, note || null, false);
  }

  function write(value, like, plain) {
    if (value === null || typeof value !== "object" || typeof value.toJSON === "function") {
      return literal(value);
    }
    const own = plain ? undefined : notes.get(value);
    if (own !== undefined && image(value) === own.image) return own.text;
    const note = own || like;
    const parts = [];
    if (isArray(value)) {
      for (let i = 0; i < value.length; i++) {
        parts.push(member(value[i], note, Text(i), plain) || "null");
      }
      return "[" + parts.join(",") + "]";
    }
    let keys = keysOf(value);
    // Of a copy, only the order that the language itself has changed is put right.
    if (note && !isArray(note.like) && (own !== undefined || NUMBER.test(keys[0]))) {
      const known = note.keys.filter((key) => hasOwn(value, key));
      const old = new Set(known);
      keys = known.concat(keys.filter((key) => !old.has(key)));
    }
    for (const key of keys) {
      const text = member(value[key], note, key, plain);
      if (text !== undefined) parts.push(stringify(key) + ":" + text);
    }
    return "{" + parts.join(",") + "}";
  }

  function member(value, note, key, plain) {
    if (value === null || typeof value !== "object") {
      const raw = note && note.raw.get(key);
      return raw && raw[0] === value ? raw[1] : literal(value);
    }
    // A copy that the script made looks to the one it copied for how things were written.
    const before = note && hasOwn(note.like, key) ? notes.get(note.like[key]) : undefined;
    return write(value, before || null, plain);
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
            const told = written(part);
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
    columns = texts;
    values = [];
    rows = count;
    lines = [];
    unsaid = 0;
    current = -1;
    looked = false;
    strange.clear();
    try {
      // Joined rather than added up: the host takes no text that is still in pieces.
      return ["+", run(), SECTION, told(false)].join("");
    } catch (error) {
      return ["!", told(true, error)].join("");
    } finally {
      columns = values = targets = [];
    }
  }

  function told(failed, error) {
    const news = { lines, unsaid, fields: [...strange], looked };
    if (failed) {
      let what = "";
      try {
        what = error instanceof Error ? error.name + ": " + error.message : "thrown: " + Text(error);
        news.stack = Text((error && error.stack) || "");
      } catch (worse) {
        what = "an error that does not tell what it is";
      }
      news.error = what;
      news.at = current;
    }
    return stringify(news);
  }

  function run() {
    const out = [];
    const given = [];
    targets = [];
    for (let i = 0; i < rows; i++) {
      const row = new Row(i);
      targets.push(row);
      given.push(new Proxy(row, view));
    }
    if (!single && !deterministic) collect(out, returned(script(given), given), 0);
    else {
      for (current = 0; current < rows; current++) {
        const one = given[current];
        if (deterministic) reseed(valueAt(EVENT_ID, current), +valueAt(INDEX.ts_ms, current));
        // Of one event, nothing means that it is dropped; of a batch, that it stays as it is.
        const nothing = single ? [] : [one];
        collect(out, returned(single ? script(one) : script([one]), nothing), current);
      }
      current = -1;
    }
    return encode(out);
  }

  // Adds [item, parent] for each event that the script gave back.
  function collect(out, items, parent) {
    let last = parent;
    for (let i = 0; i < items.length; i++) {
      const item = items[i];
      if (item === null || item === undefined) continue;
      if (typeof item !== "object") {
        throw new TypeError("the script returned a " + typeof item + " among the events");
      }
      const row = item[ROW];
      if (row !== undefined) last = row[ROW];
      else if (typeof item.event_id === "string") {
        const found = rowOf(item.event_id);
        if (found !== undefined) last = found;
        else strange.add("event_id");
      }
      out.push(item, last);
    }
  }

  let ids = null;
  function rowOf(id) {
    if (ids === null) {
      ids = new Map();
      for (let i = rows - 1; i >= 0; i--) ids.set(valueAt(EVENT_ID, i), i);
    }
    return ids.get(id);
  }

  function encode(out) {
    ids = null;
    const count = out.length / 2;
    const parents = [];
    const fresh = [];
    const kept = new Array(rows).fill(-1); // by row: the output that keeps its identity
    let same = count === rows;
    for (let i = 0; i < count; i++) {
      const parent = out[2 * i + 1];
      const original = out[2 * i][ROW] !== undefined;
      parents.push(parent);
      if (parent !== i) same = false;
      const holder = kept[parent];
      // The event itself comes before a copy of it, wherever they stand; of copies, the first.
      if (holder < 0 || (original && out[2 * holder][ROW] === undefined)) {
        if (original || out[2 * i].event_id !== undefined) kept[parent] = i;
      }
    }
    const before = new Changes();
    const after = new Changes();
    const tags = new Changes();
    const routing = new Changes();
    for (let i = 0; i < count; i++) {
      const item = out[2 * i];
      const parent = out[2 * i + 1];
      if (kept[parent] !== i) fresh.push(i);
      const row = item[ROW];
      if (row !== undefined) {
        const loaded = row[LOADED];
        if (loaded & (1 << BEFORE)) {
          before.put(i, imageText(row.before, "before", parent, BEFORE), valueAt(BEFORE, parent));
        }
        if (loaded & (1 << AFTER)) {
          after.put(i, imageText(row.after, "after", parent, AFTER), valueAt(AFTER, parent));
        }
        if (loaded & (1 << TAGS)) tags.add(i, tagsText(row.tags));
        if (row[ROUTE] !== undefined) routing.add(i, row[ROUTE]);
        if (row[ODD]) look(row, parent);
      } else {
        before.add(i, imageText(item.before, "before", parent, BEFORE));
        after.add(i, imageText(item.after, "after", parent, AFTER));
        tags.add(i, tagsText(item.tags));
        if (typeof item[ROUTE] === "string") routing.add(i, item[ROUTE]);
        look(item, parent);
      }
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

  class Changes {
    constructor() {
      this.at = [];
      this.texts = [];
    }
    add(i, text) {
      this.at.push(i);
      this.texts.push(text);
    }
    put(i, text, old) {
      if (text !== old) this.add(i, text);
    }
    text() {
      return this.at.join() + GROUP + this.texts.join(UNIT);
    }
  }

  function imageText(value, name, parent, field) {
    if (value === null || value === undefined) return "";
    if (typeof value !== "object" || isArray(value)) {
      throw new TypeError(name + " must be an object or null");
    }
    const noted = targets[parent][NOTES];
    const text = written(value, notes.get(value) || (noted && noted[field]));
    if (text === undefined || text[0] !== "{") throw new TypeError(name + " must be an object or null");
    return text;
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
        if (key !== "route") strange.add(key);
      } else if (!FIELDS[field][2]) {
        const text = valueAt(field, parent);
        const value = item[key];
        if (value === null || value === undefined) {
          if (text !== "") strange.add(key);
        } else if (typeof value !== "object" && Text(value) !== (text === "" ? "" : Text(FIELDS[field][1](text)))) {
          strange.add(key);
        }
      }
    }
  }

  // --- the same again on a replay -------------------------------------------------------------------

  let now = 0;
  let seed = 0;

  function reseed(id, ts_ms) {
    now = ts_ms;
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
      if (!new.target) return new Instant(now).toString();
      return parts.length ? new Instant(...parts) : new Instant(now);
    };
    Fixed.prototype = Instant.prototype;
    defineProperty(Instant.prototype, "constructor", { value: Fixed, writable: true, configurable: true });
    Fixed.now = () => now;
    Fixed.parse = Instant.parse;
    Fixed.UTC = Instant.UTC;
    define("Date", Fixed);
    defineProperty(Math, "random", { value: random, writable: true, configurable: true });
    // Clocks, and windows onto the garbage collector's.
    ["performance", "WeakRef", "FinalizationRegistry"].forEach(takeAway);
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
