// Order three things and print the receipts: node order.mjs
import { Keyrun } from "./keyrun.mjs";

const keyrun = new Keyrun(process.env.KEYRUN_ADDRESS, process.env.KEYRUN_TOKEN);

const watch = async (opened) => {
  const seen = [];
  for await (const event of keyrun.events({ kinds: "run_succeeded" }, opened)) {
    seen.push(event.run_id ?? event.kind);
    if (event.kind === "missed" || seen.length === 3) return seen;
  }
};
let seen;
await new Promise((opened) => (seen = watch(opened)));

const orders = [
  { number: 1, item: "tea", price: "2.50" },
  { number: 2n ** 53n + 1n, item: "ink", price: "1.20" },
  { number: 3, item: "desk", price: "250" },
];
const ids = [];
for (const order of orders) ids.push(await keyrun.submit("checkout", order, { key: order.item, runId: `js-${order.item}` }));
try {
  await keyrun.submit("checkout", { ...orders[0], price: "much" }, { key: "tea" });
} catch (error) {
  console.log(error.name, error.status, error.message);
}
let gates = [];
while (!gates.length) gates = (await keyrun.call("GET", "/approvals")).approvals;
for (const { run_id, gate } of gates) {
  await keyrun.call("POST", `/runs/${run_id}/gates/${encodeURIComponent(gate)}/approve`, { by: "ann" });
}
for (const id of ids) console.log(id, await keyrun.result(id));
console.log(await seen);
