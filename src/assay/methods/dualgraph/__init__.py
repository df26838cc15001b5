"""Deep research with a knowledge graph that steers and an outline that writes."""

from typing import TYPE_CHECKING

from assay.lazy import lazy_exports

if TYPE_CHECKING:
    from assay.methods.dualgraph.audit import (
        audit_report,
        audit_run,
    )
    from assay.methods.dualgraph.backends import (
        open_backend,
    )
    from assay.methods.dualgraph.chains import (
        propose_chains,
    )
    from assay.methods.dualgraph.chat_models import (
        open_model,
    )
    from assay.methods.dualgraph.checkers import (
        Checker,
        load_checker,
    )
    from assay.methods.dualgraph.communities import (
        detect_communities,
    )
    from assay.methods.dualgraph.embeddings import (
        Encoder,
        HashedWords,
        MiniLM,
    )
    from assay.methods.dualgraph.extractive import (
        ExtractiveModel,
    )
    from assay.methods.dualgraph.index import (
        update_index,
    )
    from assay.methods.dualgraph.knowledge_graph import (
        KnowledgeGraph,
    )
    from assay.methods.dualgraph.local_search import (
        LocalBackend,
    )
    from assay.methods.dualgraph.loop import (
        Progress,
    )
    from assay.methods.dualgraph.outline import (
        OutlineGraph,
    )
    from assay.methods.dualgraph.policies import (
        plan_chains,
        update_communities,
    )
    from assay.methods.dualgraph.recording import (
        RecordingBackend,
        RecordingChat,
        ReplayBackend,
        ReplayChat,
    )
    from assay.methods.dualgraph.records import (
        AuthenticationFailed,
        Budget,
        Chain,
        ChatModel,
        ChatResult,
        CitationRow,
        ContextOverflow,
        CorruptRun,
        Document,
        Edge,
        Evidence,
        Hit,
        InvalidOutput,
        LedgerRow,
        Node,
        Point,
        QueryRow,
        RateLimited,
        ReadFailed,
        ResearchConfig,
        RoundRow,
        RunLocked,
        SearchBackend,
        SearchFailed,
        Section,
        ServiceError,
        ServiceUnavailable,
        Usage,
    )
    from assay.methods.dualgraph.research_run import (
        ResearchRun,
        research,
    )
    from assay.methods.dualgraph.run_folder import (
        restore_round,
    )

_MODULES = {
    "audit": (
        "audit_report",
        "audit_run",
    ),
    "backends": ("open_backend",),
    "chains": ("propose_chains",),
    "chat_models": ("open_model",),
    "checkers": (
        "Checker",
        "load_checker",
    ),
    "communities": ("detect_communities",),
    "embeddings": (
        "Encoder",
        "HashedWords",
        "MiniLM",
    ),
    "extractive": ("ExtractiveModel",),
    "index": ("update_index",),
    "knowledge_graph": ("KnowledgeGraph",),
    "local_search": ("LocalBackend",),
    "loop": ("Progress",),
    "outline": ("OutlineGraph",),
    "policies": (
        "plan_chains",
        "update_communities",
    ),
    "recording": (
        "RecordingBackend",
        "RecordingChat",
        "ReplayBackend",
        "ReplayChat",
    ),
    "records": (
        "AuthenticationFailed",
        "Budget",
        "Chain",
        "ChatModel",
        "ChatResult",
        "CitationRow",
        "ContextOverflow",
        "CorruptRun",
        "Document",
        "Edge",
        "Evidence",
        "Hit",
        "InvalidOutput",
        "LedgerRow",
        "Node",
        "Point",
        "QueryRow",
        "RateLimited",
        "ReadFailed",
        "ResearchConfig",
        "RoundRow",
        "RunLocked",
        "SearchBackend",
        "SearchFailed",
        "Section",
        "ServiceError",
        "ServiceUnavailable",
        "Usage",
    ),
    "research_run": (
        "ResearchRun",
        "research",
    ),
    "run_folder": ("restore_round",),
}

__all__ = [
    "AuthenticationFailed",
    "Budget",
    "Chain",
    "ChatModel",
    "ChatResult",
    "Checker",
    "CitationRow",
    "ContextOverflow",
    "CorruptRun",
    "Document",
    "Edge",
    "Encoder",
    "Evidence",
    "ExtractiveModel",
    "HashedWords",
    "Hit",
    "InvalidOutput",
    "KnowledgeGraph",
    "LedgerRow",
    "LocalBackend",
    "MiniLM",
    "Node",
    "OutlineGraph",
    "Point",
    "Progress",
    "QueryRow",
    "RateLimited",
    "ReadFailed",
    "RecordingBackend",
    "RecordingChat",
    "ReplayBackend",
    "ReplayChat",
    "ResearchConfig",
    "ResearchRun",
    "RoundRow",
    "RunLocked",
    "SearchBackend",
    "SearchFailed",
    "Section",
    "ServiceError",
    "ServiceUnavailable",
    "Usage",
    "audit_report",
    "audit_run",
    "detect_communities",
    "load_checker",
    "open_backend",
    "open_model",
    "plan_chains",
    "propose_chains",
    "research",
    "restore_round",
    "update_communities",
    "update_index",
]

__getattr__ = lazy_exports(
    __name__,
    {name: module for module, names in _MODULES.items() for name in names},
    extra="agents",
)
