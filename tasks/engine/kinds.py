"""Kinds of artifacts, as annotations in `stage.Roles`; a stage's file may have others, for outputs that none takes."""

from __future__ import annotations

from typing import Annotated

from ...artifacts.ref import ArtifactRef


class Kind:
    """The kinds that a field admits."""

    def __init__(self, *names: str) -> None:
        self.names = names


# ExportedPrograms: each a graph, and one object for each weight storage. A graph is an artifact, too (see
# `tasks.programs.binding`): stages that do not read weights take it, and return one, or say why they cannot.
AtenProgram = Annotated[ArtifactRef, Kind("program/aten")]
QuantizedProgram = Annotated[ArtifactRef, Kind("program/quantized")]
EdgeProgram = Annotated[ArtifactRef, Kind("program/edge")]
PartitionedProgram = Annotated[ArtifactRef, Kind("program/partitioned")]
ToLower = Annotated[ArtifactRef, Kind("program/aten", "program/quantized", "graph/aten", "graph/quantized")]
ToPartition = Annotated[ArtifactRef, Kind("program/edge", "graph/edge")]
MadeEdge = Annotated[ArtifactRef, Kind("program/edge", "graph/edge", "graph/refused")]
MadePartitioned = Annotated[ArtifactRef, Kind("program/partitioned", "graph/partitioned", "graph/refused")]
ToEmit = Annotated[ArtifactRef, Kind("program/edge", "program/partitioned")]
ToCompare = Annotated[ArtifactRef, Kind("program/aten", "program/quantized", "program/edge")]
ToClimb = Annotated[ArtifactRef, Kind("program/aten", "program/quantized", "program/edge", "payload/pte")]

# What the lowering knows of a model besides its programs.
State = Annotated[ArtifactRef, Kind("program/state")]  # names of the buffers that a method changes
Examples = Annotated[ArtifactRef, Kind("examples")]  # flat inputs, eager's flat outputs, sequences of calls
FoundInputs = Annotated[ArtifactRef, Kind("examples/found")]  # tasks.verify.adversarial.Found
Samples = Annotated[ArtifactRef, Kind("samples")]  # flat inputs for calibration
MethodNames = Annotated[ArtifactRef, Kind("model/methods")]
NodeNames = Annotated[ArtifactRef, Kind("model/batch_norms")]  # of an exported program's graph
WeightDigests = Annotated[ArtifactRef, Kind("model/weights")]  # of all methods' parameters, by method and name
Constants = Annotated[ArtifactRef, Kind("model/constants")]  # values of constant methods
Assets = Annotated[ArtifactRef, Kind("model/assets")]  # files that are delivered with the model, by name
Metadata = Annotated[ArtifactRef, Kind("model/metadata")]  # configs.metadata.Metadata, as it was written
Observed = Annotated[ArtifactRef, Kind("model/observed")]  # what users' code has read: see `tasks.engine.keys.inputs`

Sizes = Annotated[ArtifactRef, Kind("model/sizes")]  # see `tasks.usercode.inputs.input_sizes`

Bucket = Annotated[ArtifactRef, Kind("model/bucket")]  # formats.pte.buckets.Bucket, as files have it

ObservedSamples = Annotated[ArtifactRef, Kind("report/calibration")]  # what quantizers observed, in words

Notes = Annotated[ArtifactRef, Kind("report/notes")]  # what is to be known of a program, a list of texts

# Backends' results and files.
Delegates = Annotated[ArtifactRef, Kind("delegates")]
PteFile = Annotated[ArtifactRef, Kind("payload/pte")]
PtdFile = Annotated[ArtifactRef, Kind("payload/ptd")]
Container = Annotated[ArtifactRef, Kind("payload/nfat")]

# Reports, all JSON.
Finding = Annotated[ArtifactRef, Kind("finding")]  # tasks.results.finding.Finding, by the name of the role
PayloadLosses = Annotated[ArtifactRef, Kind("report/payload_losses")]  # tasks.results.numerics.PayloadLosses
NodeLosses = Annotated[ArtifactRef, Kind("report/nodes")]  # tasks.results.numerics.NodeLosses
Delegated = Annotated[ArtifactRef, Kind("report/delegated")]  # the number of a method's partitions
Scores = Annotated[ArtifactRef, Kind("report/scores")]  # tasks.results.accuracy.Scores
OriginOfFile = Annotated[ArtifactRef, Kind("report/origin")]  # what the digest in a file's metadata is of
Provenance = Annotated[ArtifactRef, Kind("report/provenance")]
Diagnosis = Annotated[ArtifactRef, Kind("report/diagnosis")]  # tasks.results.diagnosis.Diagnosis

# What ExecuTorch's developer tools read.
EtRecord = Annotated[ArtifactRef, Kind("debug/etrecord")]
DebugHandles = Annotated[ArtifactRef, Kind("debug/handles")]
DelegateMap = Annotated[ArtifactRef, Kind("debug/delegates")]
DebugSources = Annotated[ArtifactRef, Kind("debug/sources")]
