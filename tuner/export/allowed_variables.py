"""Environment variables of a worker that an exported job may set: exact names, each with the pattern of its values.

A worker is not trusted. Libraries read variables that load a plugin, write a file, open a port or fetch code from a
cache (`NCCL_NET_PLUGIN`, `CUBLAS_LOGDEST_DBG`, `NCCL_RAS_ADDR`, `TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE`), and each
release adds some. So no rule on names or values decides, only this list. A value is a number, a flag, or words of a
closed list, and therefore names no file, host, port, interface or module.
"""

import re

_FLAG = "[01]"
_COUNT = "[0-9]{1,10}"
_FEW = "[0-9]{1,4}"
_BOOLEAN = "(?i:true|false|[01])"
_DISTANCE = "(?:[0-9]|LOC|NVL|PIX|PXB|PXN|P2C|PHB|SYS)"
"""Pattern of NCCL's names for the kind of connection between two devices, such as `NVL` or `PIX`."""


def _words(*words: str) -> str:
    return f"(?:{'|'.join(words)})"


def _list_of(item: str) -> str:
    return f"{item}(?:,{item}){{0,15}}"


_ALLOCATOR = _list_of(
    _words(
        "expandable_segments:(?:True|False)",
        "backend:(?:native|cudaMallocAsync)",
        "garbage_collection_threshold:0\\.[0-9]{1,4}",
        "(?:max_split_size_mb|max_non_split_rounding_mb|roundup_power2_divisions|pinned_num_register_threads):[0-9]{1,6}",
        "(?:pinned_use_cuda_host_register|pinned_use_background_threads):(?:True|False)",
    )
)
_ALGORITHMS = r"\^?" + _list_of("(?i:tree|ring|collnetdirect|collnetchain|nvls|nvlstree|pat)")
_AFFINITY = _list_of(
    _words(
        "granularity=(?:fine|thread|core|tile|socket|group|node)",
        *("compact", "scatter", "balanced", "none", "disabled", "respect", "norespect", "reset", "[0-9]{1,3}"),
    )
)
_CORES = _list_of("[0-9]{1,4}(?:-[0-9]{1,4}(?::[0-9]{1,3})?)?")
_MALLOC_TUNABLE = "glibc\\.malloc\\.{}={}".format(
    _words(
        *("hugetlb", "arena_max", "arena_test", "mmap_threshold", "mmap_max", "trim_threshold", "top_pad"),
        *("tcache_count", "tcache_max", "mxfast"),
    ),
    _COUNT,
)
_INSTRUCTIONS = _words(
    *("DEFAULT", "ALL", "SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"),
    *("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16", "AVX10_1_512"),
    "AVX10_1_512_AMX",
)

_ONEDNN = {
    "MAX_CPU_ISA": _INSTRUCTIONS,
    "CPU_ISA_HINTS": _words("NO_HINTS", "PREFER_YMM"),
    "DEFAULT_FPMATH_MODE": _words("STRICT", "BF16", "F16", "TF32", "ANY"),
    "PRIMITIVE_CACHE_CAPACITY": _COUNT,
}

_VALUES = {
    **dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), _ALLOCATOR),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _FLAG,
    **dict.fromkeys(
        (
            *("TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_CUDA_EVENT_CACHE"),
            *("TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_HIGH_PRIORITY", "TORCH_NCCL_NAN_CHECK"),
            "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        ),
        _FLAG,
    ),
    "NCCL_ALGO": _ALGORITHMS,
    "NCCL_PROTO": r"\^?" + _list_of("(?i:simple|ll128|ll)"),
    "NCCL_LAUNCH_MODE": _words("PARALLEL", "GROUP"),
    **dict.fromkeys(("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"), _DISTANCE),
    **dict.fromkeys(("NCCL_CROSS_NIC", "NCCL_P2P_PXN_LEVEL", "NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE"), "[0-2]"),
    "NCCL_IB_PCI_RELAXED_ORDERING": "[0-2]",
    **dict.fromkeys(
        (
            *("NCCL_ALLOC_P2P_NET_LL_BUFFERS", "NCCL_COLLNET_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE"),
            *("NCCL_DMABUF_ENABLE", "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_GRAPH_REGISTER", "NCCL_IB_ADAPTIVE_ROUTING"),
            *("NCCL_IB_DISABLE", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_LOCAL_REGISTER"),
            *("NCCL_NET_GDR_READ", "NCCL_NET_SHARED_BUFFERS", "NCCL_NET_SHARED_COMMS", "NCCL_NVB_DISABLE"),
            *("NCCL_P2P_DIRECT_DISABLE", "NCCL_P2P_DISABLE", "NCCL_P2P_USE_CUDA_MEMCPY", "NCCL_PXN_DISABLE"),
            *("NCCL_RUNTIME_CONNECT", "NCCL_SHM_DISABLE"),
        ),
        _FLAG,
    ),
    **dict.fromkeys(
        (
            *(
                "NCCL_BUFFSIZE",
                "NCCL_LL_BUFFSIZE",
                "NCCL_LL128_BUFFSIZE",
                "NCCL_NVLS_CHUNKSIZE",
                "NCCL_P2P_LL_THRESHOLD",
            ),
            *("NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE", "NCCL_IB_AR_THRESHOLD"),
            *("NCCL_WORK_FIFO_BYTES", "NCCL_NET_OVERHEAD"),
        ),
        _COUNT,
    ),
    **dict.fromkeys(
        (
            *(
                "NCCL_CGA_CLUSTER_SIZE",
                "NCCL_MAX_CTAS",
                "NCCL_MAX_NCHANNELS",
                "NCCL_MAX_P2P_NCHANNELS",
                "NCCL_MIN_CTAS",
            ),
            *("NCCL_MIN_NCHANNELS", "NCCL_MIN_P2P_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_NSOCKS_PERTHREAD"),
            *("NCCL_NTHREADS", "NCCL_NVLS_NCHANNELS", "NCCL_SOCKET_NTHREADS", "NCCL_COLLNET_NODE_THRESHOLD"),
            *("NCCL_IB_GID_INDEX", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_SL", "NCCL_IB_TC"),
        ),
        _FEW,
    ),
    "CUDA_DEVICE_MAX_CONNECTIONS": "[0-9]{1,2}",
    "CUDA_LAUNCH_BLOCKING": _FLAG,
    "CUDA_MODULE_LOADING": _words("DEFAULT", "LAZY", "EAGER"),
    "CUBLAS_WORKSPACE_CONFIG": "(?::[0-9]{1,7}:[0-9]{1,3}){1,4}",
    "CUBLASLT_WORKSPACE_SIZE": _COUNT,
    "NVIDIA_TF32_OVERRIDE": _FLAG,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": _FLAG,
    **dict.fromkeys(
        (
            *(
                "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
                "TORCHINDUCTOR_MAX_AUTOTUNE",
                "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
            ),
            *("TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE", "TORCHINDUCTOR_SHAPE_PADDING"),
            *(
                "TORCHINDUCTOR_CUDAGRAPHS",
                "TORCHINDUCTOR_EMULATE_PRECISION_CASTS",
                "TORCHINDUCTOR_PERSISTENT_REDUCTIONS",
            ),
            *("TORCHINDUCTOR_COMPREHENSIVE_PADDING", "TORCHINDUCTOR_LAYOUT_OPTIMIZATION"),
        ),
        _FLAG,
    ),
    "TORCHINDUCTOR_COMPILE_THREADS": "[0-9]{1,3}",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": _list_of("(?:ATEN|TRITON|CPP)"),
    "ATEN_CPU_CAPABILITY": _words("default", "avx2", "avx512", "vsx", "zvector", "sve256"),
    **{f"{prefix}_{name}": values for prefix in ("ONEDNN", "DNNL") for name, values in _ONEDNN.items()},
    "MKL_NUM_THREADS": _FEW,
    "MKL_DYNAMIC": _BOOLEAN,
    "MKL_CBWR": "(?:AUTO|COMPATIBLE|SSE4_2|AVX|AVX2|AVX512)(?:,STRICT)?",
    "MKL_ENABLE_INSTRUCTIONS": _words("SSE4_2", "AVX", "AVX2", "AVX512"),
    "OMP_NUM_THREADS": "[0-9]{1,4}(?:,[0-9]{1,4}){0,3}",
    "OMP_PLACES": _words("threads", "cores", "ll_caches", "numa_domains", "sockets"),
    "OMP_PROC_BIND": _list_of("(?i:true|false|close|spread|master|primary)"),
    "OMP_WAIT_POLICY": "(?i:active|passive)",
    "OMP_SCHEDULE": "(?i:static|dynamic|guided|auto)(?:,[0-9]{1,9})?",
    "OMP_STACKSIZE": "[0-9]{1,6}[BKMG]?",
    **dict.fromkeys(("OMP_DYNAMIC", "OMP_NESTED"), _BOOLEAN),
    **dict.fromkeys(("OMP_MAX_ACTIVE_LEVELS", "OMP_THREAD_LIMIT"), _FEW),
    "KMP_AFFINITY": _AFFINITY,
    "KMP_BLOCKTIME": "(?:[0-9]{1,10}|infinite)",
    "GOMP_CPU_AFFINITY": _CORES,
    "GOMP_SPINCOUNT": "(?:[0-9]{1,10}|(?i:infinite|infinity))",
    **dict.fromkeys(("MALLOC_ARENA_MAX", "MALLOC_ARENA_TEST"), _FEW),
    **dict.fromkeys(
        ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"), _COUNT
    ),
    "GLIBC_TUNABLES": f"{_MALLOC_TUNABLE}(?::{_MALLOC_TUNABLE}){{0,7}}",
}

ALLOWED = {name: re.compile(values, re.ASCII) for name, values in _VALUES.items()}
"""Regular expressions, by name of the environment variable, for the values that an exported job may set."""
LONGEST_VALUE = 150
"""Maximum length of an environment variable's value that an exported job sets. Workers cut recorded values at 200
characters, and a cut value would be wrong."""


def is_allowed(name: str, value: str) -> bool:
    """Whether an exported job may set this environment variable, recorded on a worker, to this value."""
    pattern = ALLOWED.get(name)
    return pattern is not None and len(value) <= LONGEST_VALUE and pattern.fullmatch(value) is not None
