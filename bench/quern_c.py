"""What these scripts share: libquern's structures by ctypes, views of tensors, timing by CUDA graphs.

The sizes that change with the library are read from its header, beside which these scripts lie. PyTorch is needed for
everything that touches a GPU.
"""
import ctypes
import os
import re
import statistics
import time

try:
    import torch
except ImportError:
    torch = None

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "..", "include", "quern", "op.h"), encoding="utf-8") as header:
    OP_H = header.read()
MAX_IN, MAX_OUT = (int(re.search(rf"#define QN_MAX_{side} (\d+)", OP_H)[1]) for side in ("IN", "OUT"))
ENUM = re.search(r"typedef enum qn_attr \{(.*?)\} qn_attr;", OP_H, re.S)[1]
ATTRS = len(re.findall(r"^    QN_ATTR_(?!COUNT)\w+", ENUM, re.M))
F32, F16, BF16, I8, U8, I32, F8 = 1, 2, 3, 10, 11, 14, 20
CPU, CUDA = 2, 3  # QN_BACKEND_CPU, QN_BACKEND_CUDA


class Shape(ctypes.Structure):
    _fields_ = [("format", ctypes.c_int32), ("ndim", ctypes.c_int32), ("dims", ctypes.c_int64 * 4)]


class View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("shape", Shape), ("strides", ctypes.c_int64 * 4)]


class Desc(ctypes.Structure):
    _fields_ = [("op", ctypes.c_int32), ("attr", ctypes.c_int32 * ATTRS), ("inputs", Shape * MAX_IN)]


class Args(ctypes.Structure):
    _fields_ = [("inputs", View * MAX_IN), ("outputs", View * MAX_OUT), ("packed", ctypes.c_void_p)]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("text", ctypes.c_char * 500)]


class PlanOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("backend", ctypes.c_int32), ("isa", ctypes.c_int32),
                ("batch_invariant", ctypes.c_int32), ("kernel", ctypes.c_char_p)]


class CtxOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("allocator", ctypes.c_void_p * 3), ("log", ctypes.c_void_p * 2),
                ("isa", ctypes.c_int32), ("jit", ctypes.c_int32), ("cache_dir", ctypes.c_char_p),
                ("cubin_dir", ctypes.c_char_p), ("device", ctypes.c_int32), ("cuda", ctypes.c_char_p),
                ("nvrtc", ctypes.c_char_p), ("cuda_target", ctypes.c_char_p)]


class Exec(ctypes.Structure):
    _fields_ = [("pool", ctypes.c_void_p), ("parallel", ctypes.c_void_p * 2), ("threads", ctypes.c_int32),
                ("stream", ctypes.c_void_p), ("constant_weights", ctypes.c_int32)]


def view_of(tensor, format):
    v = View(data=tensor.data_ptr())
    v.shape.format, v.shape.ndim = format, tensor.dim()
    for i in range(4):
        v.shape.dims[i] = tensor.shape[i] if i < tensor.dim() else 1
        v.strides[i] = tensor.stride(i) * tensor.element_size() if i < tensor.dim() else 0
    return v


class Plan:
    """A plan with its workspace for that many rows, and its descriptor and results' shapes."""

    def __init__(self, quern, text, rows, kernel=None):
        self.quern, self.handle = quern, ctypes.c_void_p()
        self.desc, self.out, options = Desc(), (Shape * MAX_OUT)(), PlanOptions()
        quern.must(quern.lib.qn_op_desc_parse, text.encode(), ctypes.byref(self.desc))
        quern.must(quern.lib.qn_op_desc_check, ctypes.byref(self.desc), self.out, None)
        quern.lib.qn_plan_options_init(ctypes.byref(options))
        if options.size != ctypes.sizeof(options):
            raise RuntimeError(f"qn_plan_options has {options.size} bytes, these scripts expect {ctypes.sizeof(options)}")
        options.backend = quern.backend
        options.kernel = kernel.encode() if kernel else None
        quern.must(quern.lib.qn_plan_create, quern.ctx, ctypes.byref(self.desc), ctypes.byref(options),
                   ctypes.byref(self.handle))
        self.bytes = quern.lib.qn_plan_workspace_bytes(self.handle, rows, quern.threads)
        self.keep, self.workspace = quern.room(max(self.bytes, 64))

    def run(self, args):
        quern = self.quern
        run = Exec(pool=quern.pool)
        if quern.backend == CUDA:
            run = Exec(stream=torch.cuda.current_stream().cuda_stream, constant_weights=1)
        quern.must(quern.lib.qn_run, self.handle, ctypes.byref(args), ctypes.c_void_p(self.workspace),
                   ctypes.c_size_t(self.bytes), ctypes.byref(run))

    def explain(self):
        text = ctypes.create_string_buffer(1 << 16)
        self.quern.lib.qn_plan_explain(self.handle, text, ctypes.c_size_t(len(text)))
        return text.value.decode()

    def close(self):
        self.quern.lib.qn_plan_destroy(self.handle)


class Quern:
    """The library and a context of it; with `threads` plans are of the CPU backend and their memory is this process's."""

    def __init__(self, lib, cubins, threads=0, cache=None):
        self.lib = ctypes.CDLL(lib)
        self.backend, self.threads = (CPU, threads) if threads else (CUDA, 1)
        self.lib.qn_plan_kernel.restype = ctypes.c_char_p
        self.lib.qn_plan_kernel.argtypes = [ctypes.c_void_p]
        self.lib.qn_plan_pack_bytes.restype = ctypes.c_size_t
        self.lib.qn_plan_pack_bytes.argtypes = [ctypes.c_void_p]
        self.lib.qn_plan_workspace_bytes.restype = ctypes.c_size_t
        self.lib.qn_plan_workspace_bytes.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
        self.ctx = ctypes.c_void_p()
        options = CtxOptions()
        self.lib.qn_ctx_options_init(ctypes.byref(options))
        if options.size != ctypes.sizeof(options):
            raise RuntimeError(f"qn_ctx_options has {options.size} bytes, these scripts expect {ctypes.sizeof(options)}")
        options.cubin_dir = cubins.encode() if cubins else None
        options.cache_dir = cache.encode() if cache else None
        self.must(self.lib.qn_ctx_create, ctypes.byref(options), ctypes.byref(self.ctx))
        self.pool = ctypes.c_void_p()
        if threads:
            self.must(self.lib.qn_pool_create, self.ctx, threads, ctypes.byref(self.pool))

    def room(self, bytes):
        """Memory where plans of this context work: what keeps it, and its address, a multiple of 64."""
        if self.backend == CUDA:
            raw = torch.empty(bytes, dtype=torch.uint8, device="cuda")
            return raw, raw.data_ptr()
        raw = ctypes.create_string_buffer(bytes + 64)
        return raw, (ctypes.addressof(raw) + 63) // 64 * 64

    def place(self, data):
        """The same, holding these bytes."""
        if self.backend == CUDA:
            raw = torch.frombuffer(bytearray(data or b"0"), dtype=torch.uint8).cuda()
            return raw, raw.data_ptr()
        raw, at = self.room(len(data))
        ctypes.memmove(at, data, len(data))
        return raw, at

    def must(self, call, *arguments):
        error = Error()
        if call(*arguments, ctypes.byref(error)) != 0:
            raise RuntimeError(error.text.decode())

    def plan(self, text, rows, kernel=None):
        return Plan(self, text, rows, kernel)

    def close(self):
        self.lib.qn_ctx_destroy(self.ctx)


def time_graph(call, copies, guess=None, total=20000, replays=7):
    """Microseconds a call, by replays of a graph of calls over the copies; about `total` of them at `guess` a call, or at
    what a call by itself takes beyond most of what its launch does."""
    call(0)
    torch.cuda.synchronize()
    if guess is None:
        begin = time.perf_counter()
        call(1 % copies)
        torch.cuda.synchronize()
        guess = (time.perf_counter() - begin) * 1e6 - 40
    count = max(copies, min(200, int(total / max(guess, 5.0))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            call(i % copies)
    times = []
    for _ in range(replays):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / count)
    return statistics.median(times[1:])
