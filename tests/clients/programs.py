"""Programs of client libraries, each for a device and eager or compiled.

A program is a function of a device and of a `Compile`, which returns what it is given (eager) or
that compiled. It draws all random numbers on the host, and returns tensors that are compared with
those of the CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.clients.vision import torchvision

Compile = Callable[[Any], Any]
Program = Callable[[str, Compile], Any]
PROGRAMS: dict[str, tuple[str, Program]] = {}


def program(library: str) -> Callable[[Program], Program]:
    """Enter a program, by its function's name, and the module that it needs."""

    def enter(function: Program) -> Program:
        PROGRAMS[function.__name__] = (library, function)
        return function

    return enter


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(count: int, *shape: int, seed: int = 2) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


def trained(
    model: nn.Module,
    loss: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 2,
) -> list[Tensor]:
    """Losses of some steps, and the weights after them."""
    optimizer = optimizer or torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05
    )
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return [*losses, *(p.detach() for p in model.parameters() if p.requires_grad)]


# timm and torchvision.


def _timm(name: str, device: str, compiled: Compile, **arguments: Any) -> list[Tensor]:
    torchvision()
    import timm
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2

    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **arguments).to(device).train()
    optimizer = create_optimizer_v2(model, "lamb", lr=1e-2)
    inputs, labels = drawn(4, 3, 32, 32).to(device), whole(5, 4).to(device)
    forward, criterion = compiled(model), LabelSmoothingCrossEntropy(0.1)
    return trained(model, lambda: criterion(forward(inputs), labels), optimizer)


@program("timm")
def timm_vit(device: str, compiled: Compile) -> list[Tensor]:
    size = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 3}
    return _timm("vit_tiny_patch16_224", device, compiled, **size)


@program("timm")
def timm_convnext(device: str, compiled: Compile) -> list[Tensor]:
    return _timm("convnext_atto", device, compiled, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))


@program("timm")
def timm_efficientnet(device: str, compiled: Compile) -> list[Tensor]:
    """Batch normalisation, squeezing and excitation, in evaluation."""
    torchvision()
    import timm

    torch.manual_seed(0)
    model = timm.create_model("mobilenetv3_small_050", num_classes=5).to(device).eval()
    with torch.no_grad():
        return [compiled(model)(drawn(2, 3, 64, 64).to(device))]


@program("torchvision")
def torchvision_resnet(device: str, compiled: Compile) -> list[Tensor]:
    models = torchvision().models
    torch.manual_seed(0)
    model = models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=5).to(device)
    # Large enough for normalisation: over few values it makes much of a rounding.
    inputs, labels = drawn(4, 3, 64, 64).to(device), whole(5, 4).to(device)
    forward = compiled(model)
    return trained(model, lambda: functional.cross_entropy(forward(inputs), labels))


@program("torchvision")
def torchvision_transforms(device: str, compiled: Compile) -> list[Tensor]:
    torchvision()
    from torchvision.transforms import v2

    change = v2.Compose(
        [v2.Resize(24, antialias=True), v2.CenterCrop(16), v2.Grayscale(3), v2.GaussianBlur(3, 1.0)]
    )
    finish = v2.Normalize([0.5] * 3, [0.2] * 3)
    image = whole(256, 3, 32, 40).to(torch.uint8).to(device)
    return [compiled(lambda x: finish(change(x.float() / 255)))(image)]


# Language models.


def _llama(layers: int = 2) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def _peft(config: Any, device: str, compiled: Compile) -> list[Tensor]:
    from peft import get_peft_model

    model = get_peft_model(_llama(), config).to(device)
    ids = whole(64, 2, 16).to(device)
    forward = compiled(model)
    losses = trained(model, lambda: forward(input_ids=ids, labels=ids).loss)
    merged = model.merge_and_unload()
    with torch.no_grad():
        return [*losses, merged(input_ids=ids).logits]


@program("peft")
def peft_lora(device: str, compiled: Compile) -> list[Tensor]:
    from peft import LoraConfig

    return _peft(LoraConfig(r=4, target_modules=["q_proj", "v_proj"]), device, compiled)


@program("peft")
def peft_dora(device: str, compiled: Compile) -> list[Tensor]:
    from peft import LoraConfig

    config = LoraConfig(r=4, target_modules="all-linear", use_dora=True)
    return _peft(config, device, compiled)


@program("peft")
def peft_ia3(device: str, compiled: Compile) -> list[Tensor]:
    from peft import IA3Config

    config = IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
    return _peft(config, device, compiled)


@program("x_transformers")
def x_transformers_decoder(device: str, compiled: Compile) -> list[Tensor]:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Decoder(
        dim=32,
        depth=2,
        heads=4,
        rotary_pos_emb=True,
        attn_flash=True,
        ff_glu=True,
        use_rmsnorm=True,
    )
    net = TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers)
    model = AutoregressiveWrapper(net).to(device)
    ids = whole(64, 2, 17).to(device)
    forward = compiled(model)
    losses = trained(model, lambda: forward(ids))
    model.eval()
    return [*losses, model.generate(ids[:, :4], 6, temperature=0.0)]


@program("x_transformers")
def x_transformers_encoder(device: str, compiled: Compile) -> list[Tensor]:
    from x_transformers import Encoder, ViTransformerWrapper

    torch.manual_seed(0)
    layers = Encoder(dim=32, depth=2, heads=4, attn_num_mem_kv=2, sandwich_norm=True)
    model = ViTransformerWrapper(image_size=32, patch_size=8, num_classes=5, attn_layers=layers).to(
        device
    )
    inputs, labels = drawn(2, 3, 32, 32).to(device), whole(5, 2).to(device)
    forward = compiled(model)
    return trained(model, lambda: functional.cross_entropy(forward(inputs), labels))


# torchao.


def _mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))


def _quantized(config: Any, device: str, compiled: Compile) -> list[Tensor]:
    from torchao.quantization import quantize_

    model = _mlp().to(device, torch.bfloat16)
    quantize_(model, config)
    with torch.no_grad():
        return [compiled(model)(drawn(8, 64).to(device, torch.bfloat16))]


@program("torchao")
def torchao_int8_weights(device: str, compiled: Compile) -> list[Tensor]:
    from torchao.quantization import Int8WeightOnlyConfig

    return _quantized(Int8WeightOnlyConfig(version=2), device, compiled)


@program("torchao")
def torchao_int8_dynamic(device: str, compiled: Compile) -> list[Tensor]:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return _quantized(Int8DynamicActivationInt8WeightConfig(version=2), device, compiled)


@program("torchao")
def torchao_float8_weights(device: str, compiled: Compile) -> list[Tensor]:
    from torchao.quantization import Float8WeightOnlyConfig

    return _quantized(Float8WeightOnlyConfig(), device, compiled)


@program("torchao")
def torchao_qat(device: str, compiled: Compile) -> list[Tensor]:
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        PerGroup,
        quantize_,
    )
    from torchao.quantization.qat import QATConfig

    model = _mlp()
    base = Int8DynamicActivationIntxWeightConfig(
        torch.int4,  # type: ignore[attr-defined] # missing in PyTorch's stubs
        PerGroup(32),
    )
    quantize_(model, QATConfig(base, step="prepare"))
    model.to(device)
    inputs = drawn(8, 64).to(device)
    forward = compiled(model)
    return trained(model, lambda: forward(inputs).square().mean())


@program("torchao")
def torchao_float8_training(device: str, compiled: Compile) -> list[Tensor]:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=True)
    model = convert_to_float8_training(_mlp(), config=config).to(device, torch.bfloat16)
    inputs = drawn(16, 64).to(device, torch.bfloat16)
    forward = compiled(model)
    return trained(model, lambda: forward(inputs).float().square().mean())


def _small_states(name: str, device: str) -> list[Tensor]:
    """Three steps with gradients of 17 values: a state between two codes may be rounded to either.

    torchao compiles the arithmetic of one parameter by itself, without naming a backend.
    """
    import torchao.optim

    weight = nn.Parameter(drawn(64, 256).to(device))  # below 4096 elements states stay float32
    optimizer = getattr(torchao.optim, name)([weight], lr=1e-2)
    torch.compiler.set_default_backend("neuron" if device == "neuron" else "eager")
    try:
        for seed in range(3):
            weight.grad = ((whole(17, 64, 256, seed=seed) - 8) / 8).to(device)
            optimizer.step()
    finally:
        torch.compiler.set_default_backend(None)
    moment = optimizer.state[weight]["exp_avg"]
    assert type(moment).__name__.startswith("OptimState")
    return [weight, moment.codes]


@program("torchao")
def torchao_8bit_states(device: str, compiled: Compile) -> list[Tensor]:
    return _small_states("AdamW8bit", device)


@program("torchao")
def torchao_4bit_states(device: str, compiled: Compile) -> list[Tensor]:
    return _small_states("Adam4bit", device)


@program("torchao")
def torchao_float8_states(device: str, compiled: Compile) -> list[Tensor]:
    return _small_states("AdamWFp8", device)


# transformers: ways to generate that have a second model or caches of their own.


def _generated(device: str, compiled: Compile, **arguments: Any) -> list[Tensor]:
    model = _llama().eval().to(device)
    model.forward = compiled(model.forward)
    words = torch.tensor([[5, 6, 7, 8, 5, 6, 7]], device=device)
    result = model.generate(
        words,
        attention_mask=torch.ones_like(words),
        max_new_tokens=9,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
        eos_token_id=None,
        **arguments,
    )
    return [result.sequences, *result.logits]


@program("transformers")
def generate_assisted(device: str, compiled: Compile) -> list[Tensor]:
    return _generated(device, compiled, assistant_model=_llama(layers=1).eval().to(device))


@program("transformers")
def generate_looked_up(device: str, compiled: Compile) -> list[Tensor]:
    return _generated(device, compiled, prompt_lookup_num_tokens=3)


@program("transformers")
def generate_beams(device: str, compiled: Compile) -> list[Tensor]:
    return _generated(device, compiled, num_beams=3, num_return_sequences=2)


# Data, metrics, explanations, graphs, images.


@program("torchmetrics")
def torchmetrics_classification(device: str, compiled: Compile) -> list[Tensor]:
    import torchmetrics.functional.classification as metrics
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassAUROC,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
    )

    collected = MetricCollection(
        [
            MulticlassAccuracy(5),
            MulticlassF1Score(5, average="macro"),
            MulticlassAUROC(5, thresholds=20),
            MulticlassConfusionMatrix(5),
        ]
    ).to(device)
    for seed in (1, 2):
        collected.update(
            drawn(16, 5, seed=seed).softmax(1).to(device), whole(5, 16, seed=seed).to(device)
        )
    error = compiled(lambda p, t: metrics.multiclass_calibration_error(p, t, 5, n_bins=4))
    scores, labels = drawn(16, 5).softmax(1).to(device), whole(5, 16).to(device)
    return [*collected.compute().values(), error(scores, labels)]


@program("torchmetrics")
def torchmetrics_regression_image(device: str, compiled: Compile) -> list[Tensor]:
    from torchmetrics.functional.image import (
        peak_signal_noise_ratio,
        structural_similarity_index_measure,
    )
    from torchmetrics.functional.regression import pearson_corrcoef, r2_score

    x, y = (
        drawn(2, 3, 24, 24).sigmoid().to(device),
        drawn(2, 3, 24, 24, seed=3).sigmoid().to(device),
    )
    flat = compiled(lambda a, b: (pearson_corrcoef(a, b), r2_score(a, b)))
    psnr = peak_signal_noise_ratio(x, y, data_range=1.0)
    ssim = structural_similarity_index_measure(x, y, data_range=1.0)
    return [psnr, ssim, *flat(x.flatten(), y.flatten())]


@program("captum")
def captum_attributions(device: str, compiled: Compile) -> list[Tensor]:
    from captum.attr import (
        FeatureAblation,
        IntegratedGradients,
        LayerGradCam,
        Occlusion,
        Saliency,
    )

    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3, padding=1)
    model = nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    model.to(device).eval()
    inputs = drawn(2, 3, 8, 8).to(device).requires_grad_()
    forward = compiled(model)
    targets = torch.tensor([1, 3], device=device)
    return [
        IntegratedGradients(forward).attribute(inputs, target=targets, n_steps=8),
        Saliency(forward).attribute(inputs, target=targets),
        FeatureAblation(forward).attribute(
            inputs, target=targets, feature_mask=torch.arange(3, device=device).view(1, 3, 1, 1)
        ),
        Occlusion(forward).attribute(inputs, (3, 4, 4), strides=(3, 4, 4), target=targets),
        LayerGradCam(model, first).attribute(inputs, target=targets),
    ]


def _graph(device: str) -> tuple[Tensor, Tensor, Tensor]:
    edges = torch.stack([whole(12, 40, seed=4), whole(12, 40, seed=5)])
    return drawn(12, 8).to(device), edges.to(device), whole(3, 12).to(device)


def _geometric(layers: Any, device: str, compiled: Compile) -> list[Tensor]:
    torch.manual_seed(0)
    first, second = layers()
    model = nn.ModuleList([first, second]).to(device)
    inputs, edges, labels = _graph(device)
    forward = compiled(lambda x, e: second(functional.elu(first(x, e)), e))
    return trained(model, lambda: functional.cross_entropy(forward(inputs, edges), labels))


@program("torch_geometric")
def geometric_gcn(device: str, compiled: Compile) -> list[Tensor]:
    from torch_geometric.nn import GCNConv

    return _geometric(lambda: (GCNConv(8, 16), GCNConv(16, 3)), device, compiled)


@program("torch_geometric")
def geometric_gat_sage(device: str, compiled: Compile) -> list[Tensor]:
    from torch_geometric.nn import GATv2Conv, SAGEConv

    return _geometric(
        lambda: (GATv2Conv(8, 8, heads=2), SAGEConv(16, 3, aggr="max")), device, compiled
    )


@program("torch_geometric")
def geometric_pooling(device: str, compiled: Compile) -> list[Tensor]:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GINConv, global_add_pool, global_mean_pool
    from torch_geometric.utils import to_dense_adj

    graphs = [
        Data(x=drawn(5 + i, 8, seed=i), edge_index=whole(5 + i, 2, 12, seed=i)) for i in range(3)
    ]
    batch = Batch.from_data_list(graphs).to(device)
    torch.manual_seed(0)
    layer = GINConv(nn.Sequential(nn.Linear(8, 8), nn.ReLU())).to(device)
    call = compiled(layer)
    nodes = call(batch.x, batch.edge_index)
    pools = [pool(nodes, batch.batch, 3) for pool in (global_add_pool, global_mean_pool)]
    return [*pools, to_dense_adj(batch.edge_index, batch.batch)]


@program("kornia")
def kornia_images(device: str, compiled: Compile) -> list[Tensor]:
    import kornia

    image = drawn(2, 3, 16, 20).sigmoid().to(device)
    angles = torch.tensor([10.0, -25.0], device=device)

    def change(x: Tensor) -> list[Tensor]:
        return [
            kornia.filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0)),
            kornia.filters.sobel(x),
            kornia.color.rgb_to_hsv(x),
            kornia.color.rgb_to_lab(x),
            kornia.geometry.transform.rotate(x, angles),
            kornia.enhance.adjust_contrast(x, 0.7),
            kornia.morphology.dilation(x, torch.ones(3, 3, device=x.device)),
            kornia.losses.ssim_loss(x, x.flip(-1), 5),
        ]

    result: list[Tensor] = compiled(change)(image)
    return result


@program("kornia")
def kornia_geometry(device: str, compiled: Compile) -> list[Tensor]:
    import kornia

    angle = drawn(4, 3).to(device)

    def change(x: Tensor) -> list[Tensor]:
        rotation = kornia.geometry.conversions.axis_angle_to_rotation_matrix(x)
        points = kornia.geometry.linalg.transform_points(
            torch.eye(4, device=x.device).repeat(4, 1, 1), x[:, None]
        )
        return [rotation, points]

    result: list[Tensor] = compiled(change)(angle)
    return result


# What PyTorch itself has.


@program("torch")
def func_per_sample_gradients(device: str, compiled: Compile) -> list[Tensor]:
    from torch.func import functional_call, grad, vmap

    model = _mlp().to(device)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(w: Any, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(functional_call(model, w, (x[None],)), y[None])

    inputs, targets = drawn(4, 64).to(device), drawn(4, 64, seed=3).to(device)
    each = compiled(vmap(grad(loss), (None, 0, 0)))(weights, inputs, targets)
    return list(each.values())


@program("torch")
def func_jacobians(device: str, compiled: Compile) -> list[Tensor]:
    from torch.func import hessian, jacfwd, jacrev, jvp

    def f(x: Tensor) -> Tensor:
        return torch.tanh(x @ x.T).sum(1) + x.exp().sum()

    x = drawn(3, 3).to(device)

    def derivatives(x: Tensor) -> list[Tensor]:
        return [
            jacrev(f)(x),
            jacfwd(f)(x),
            hessian(lambda v: f(v).sum())(x),
            jvp(f, (x,), (torch.ones_like(x),))[1],
        ]

    result: list[Tensor] = compiled(derivatives)(x)
    return result


@program("torch")
def func_ensemble(device: str, compiled: Compile) -> list[Tensor]:
    from torch.func import functional_call, stack_module_state, vmap

    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(device) for _ in range(3)]
    weights, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0])
    run = vmap(lambda w, b, x: functional_call(base, (w, b), (x,)), (0, 0, None))
    return [compiled(run)(weights, buffers, drawn(5, 8).to(device))]


@program("torch")
def exported(device: str, compiled: Compile) -> list[Tensor]:
    import io

    model = _mlp().to(device).eval()
    inputs = drawn(8, 64).to(device)
    batch = torch.export.Dim("batch", min=2, max=64)
    saved = io.BytesIO()
    torch.export.save(torch.export.export(model, (inputs,), dynamic_shapes=[{0: batch}]), saved)
    saved.seek(0)
    loaded = torch.export.load(saved).module()
    forward = compiled(loaded)
    return [forward(inputs), forward(drawn(5, 64).to(device))]


@program("torch")
def sparse_embedding(device: str, compiled: Compile) -> list[Tensor]:
    torch.manual_seed(0)
    table = nn.Embedding(20, 8, sparse=True).to(device)
    bag = nn.EmbeddingBag(20, 8, mode="sum", sparse=True).to(device)
    model = nn.ModuleList([table, bag])
    ids = whole(20, 4, 3).to(device)
    forward = compiled(lambda i: table(i).sum(1) * bag(i))
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    return trained(model, lambda: forward(ids).square().mean(), optimizer)


@program("torch")
def nested_attention(device: str, compiled: Compile) -> list[Tensor]:
    torch.manual_seed(0)
    project = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)).to(device)
    parts = [drawn(n, 16, seed=n).to(device) for n in (3, 5, 2)]

    def attend(x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, [2, 8]).transpose(1, 2) for p in project)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)

    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)
    result = compiled(attend)(jagged)
    result.values().square().sum().backward()
    gradients: Iterator[Tensor] = (p.grad for p in project.parameters() if p.grad is not None)
    return [result.values().detach(), *gradients]


@program("torch")
def quantized_tensors(device: str, compiled: Compile) -> list[Tensor]:
    x = drawn(4, 8).to(device)
    tensor = torch.quantize_per_tensor(x, 0.05, 10, torch.quint8)
    channel = torch.quantize_per_channel(
        x, torch.full((4,), 0.1, device=device), torch.zeros(4, device=device), 0, torch.qint8
    )
    fake = compiled(lambda v: torch.fake_quantize_per_tensor_affine(v, 0.05, 10, 0, 255) * 2)
    return [tensor.dequantize(), tensor.int_repr(), channel.dequantize(), fake(x)]
