// What screens are made of.

export * from "./api.js";
export * from "./dom.js";
export * from "./router.js";
export * from "./table.js";
export * from "./time.js";
export * from "./ui.js";
