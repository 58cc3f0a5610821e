// Runs the script of a timeline page on a canvas that only takes notes, and prints what it drew as JSON:
// node page_stub.js PAGE. A browser isn't needed to see that it draws, zooms, moves and finds what is pointed at.
const page = require("fs").readFileSync(process.argv[2], "utf8");
const data = page.match(/<script id="data" type="application\/json">([\s\S]*?)<\/script>/)[1];
const script = page.match(/<script>\n([\s\S]*?)<\/script>\n<\/body>/)[1];
let texts = [], legend = 0;
const handlers = {};
const pen = new Proxy({}, {
  set: (held, name, value) => { held[name] = value; return true; },
  get: (held, name) => name in held ? held[name] : name === "measureText" ? text => ({width: 6 * text.length}) : (...values) => {
    for (const value of values) if (typeof value === "number" && !Number.isFinite(value)) throw Error(`${name}(${values})`);
    if (name === "fillText") texts.push(values[0]);
  },
});
const canvas = {clientWidth: 1200, style: {}, getContext: () => pen, getBoundingClientRect: () => ({left: 0, top: 0}),
                addEventListener: (name, handler) => { handlers[name] = handler; }, setPointerCapture() {}};
const tip = {style: {}, offsetWidth: 100};
globalThis.document = {getElementById: id => ({data: {textContent: data}, canvas, tip, legend: {append() { legend++; }}}[id]),
                       createElement: () => ({style: {}, append() {}})};
globalThis.window = {devicePixelRatio: 2, innerWidth: 1300, addEventListener() {}};
new Function(script)();
const found = {legend, whole: [...texts]};
const point = (x, y) => { handlers.pointermove({clientX: x, clientY: y}); return tip.style.display === "none" ? null : tip.textContent; };
found.pointed = point(640, 40);
found.beside = point(640, 40 + 56 * JSON.parse(data).lanes.length);
for (let i = 0; i < 6; i++) handlers.wheel({preventDefault() {}, clientX: 640, deltaY: -200});
texts = [];
handlers.wheel({preventDefault() {}, clientX: 640, deltaY: -200});
found.zoomed = [...texts];
found.pointed_zoomed = point(640, 40);
found.left = point(180, 40);
handlers.pointerdown({clientX: 640, pointerId: 1});
handlers.pointermove({clientX: 1100, clientY: 40});
handlers.pointerup({});
found.moved = point(640, 40);
handlers.dblclick();
found.again = point(640, 40);
console.log(JSON.stringify(found));
