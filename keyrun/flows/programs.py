"""The programs that run code in a child process: one for each language.

Each program reads one line of JSON with the source and its argument from stdin. It runs the source
with an empty stdin, and with its stdout redirected to stderr. Then it writes one JSON object with
the result or the error to the original stdout. The stdin of the program stays open for as long as
Keyrun lives. When stdin ends, the program removes its folder and kills its process group.
"""

FRAME = 65_536
"""Bytes of an answer in addition to the result: an error with its line."""

_WATCH = """
import json, os, shutil, signal, sys, threading

answer = os.dup(1)
os.dup2(2, 1)
asked = os.fdopen(os.dup(0), "rb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
given = json.loads(asked.readline())


def watch():
    while os.read(asked.fileno(), 65536):
        pass
    shutil.rmtree(given["folder"], ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


threading.Thread(target=watch, daemon=True).start()


def tell(**told):
    sys.stdout.flush()
    with os.fdopen(answer, "wb") as stream:
        stream.write(json.dumps(told).encode())


def tell_result(result):
    size = len(json.dumps(result, allow_nan=False))
    tell(**({"size": size} if size > given["max_output"] else {"result": result}))


class PermanentError(Exception):
    pass
"""

PYTHON = (
    _WATCH
    + """
import linecache, traceback

source = given["source"]
linecache.cache["<code>"] = (len(source), None, source.splitlines(True), "<code>")
names = {"__name__": "code", "PermanentError": PermanentError}
try:
    exec(compile(source, "<code>", "exec"), names)
    if not callable(names.get("main")):
        raise PermanentError("the code defines no function main(data)")
    tell_result(names["main"](given["data"]))
except Exception as error:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == "<code>"]
    line = f" (line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    said = f"{type(error).__name__}: {error}{line}"[:10000]
    tell(error=said, permanent=isinstance(error, PermanentError))
"""
)

WASM = (
    _WATCH
    + """
import base64, resource
import wasmtime

with open("stdin", "w") as stream:
    json.dump(given["data"], stream)
most = given["max_output"] + 1
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    engine = wasmtime.Engine()
    binary = base64.b64decode(given["source"])
    if not binary.startswith(b"\\0asm"):
        binary = bytes(wasmtime.wat2wasm(binary.decode()))
    module = wasmtime.Module(engine, binary)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    store = wasmtime.Store(engine)
    store.set_limits(memory_size=256 * 1024 * 1024)
    wasi = wasmtime.WasiConfig()
    wasi.stdin_file = "stdin"
    wasi.stdout_file = "stdout"
    wasi.inherit_stderr()
    store.set_wasi(wasi)
    start = linker.instantiate(store, module).exports(store)["_start"]
    try:
        start(store)
    except wasmtime.ExitTrap as left:
        if left.code:
            raise RuntimeError(f"it exited with {left.code}") from None
    with open("stdout", "rb") as stream:
        written = stream.read()
    if len(written) >= most:
        raise PermanentError(f"it wrote more than {most - 1:,} bytes, its limit")
    tell_result(json.loads(written))
except wasmtime.WasmtimeError as error:
    tell(error=f"WasmtimeError: {error}"[:10000], permanent=True)
except Exception as error:
    tell(error=f"{type(error).__name__}: {error}"[:10000],
         permanent=isinstance(error, PermanentError))
"""
)

_WORKER = """
const { workerData, parentPort } = require('node:worker_threads')
class PermanentError extends Error {}
PermanentError.prototype.name = 'PermanentError'
const tell = (told) => parentPort.postMessage(JSON.stringify(told))
const failed = (error) =>
  tell({
    error: String(error).slice(0, 10000),
    permanent: error instanceof PermanentError || error instanceof SyntaxError,
  })
;(async () => {
  const source = workerData.source + '\\n;return typeof main === "function" ? main : null'
  const main = new Function('require', 'PermanentError', source)(require, PermanentError)
  if (!main) throw new PermanentError('the code defines no function main(data)')
  const result = await main(workerData.data)
  const told = JSON.stringify({ result: result === undefined ? null : result })
  const size = Buffer.byteLength(told) - '{"result":}'.length
  if (size > workerData.max_output) tell({ size })
  else parentPort.postMessage(told)
})().catch(failed)
"""

JAVASCRIPT = (
    "const WORKER = "
    + repr(_WORKER)
    + """
const { Worker } = require('node:worker_threads')
let asked = ''
let worker = null
process.stdin.setEncoding('utf8')
process.stdin.on('end', () => {
  try {
    require('node:fs').rmSync(JSON.parse(asked).folder, { recursive: true, force: true })
  } finally {
    process.kill(-process.pid, 'SIGKILL')
  }
})
process.stdin.on('data', (chunk) => {
  asked += chunk
  if (worker || !asked.endsWith('\\n')) return
  const given = JSON.parse(asked)
  worker = new Worker(WORKER, { eval: true, workerData: given, stdin: true, stdout: true })
  worker.stdout.pipe(process.stderr)
  let told = null
  worker.on('message', (message) => { told = message; worker.terminate() })
  worker.on('error', (error) => { told = JSON.stringify({ error: String(error) }) })
  worker.on('exit', () => process.stdout.write(told || '', () => process.exit(told ? 0 : 1)))
})
"""
)
