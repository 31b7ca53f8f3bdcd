"""A convnet of timm with its own optimizer, schedule and average of weights."""

import planted  # noqa: F401
import torch

# The wheel of torchvision that registries serve has no operators for a CPU build of torch; the model needs none of them.
for name in ("nms", "qnms", "roi_align", "qroi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
    for op in (name, "_%s_backward" % name):
        torch.library.define("torchvision::" + op, "(Tensor a) -> Tensor")

import timm  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.scheduler import CosineLRScheduler  # noqa: E402
from timm.utils import ModelEmaV2  # noqa: E402

torch.manual_seed(0)
model = timm.create_model("test_resnet", pretrained=False, num_classes=4)
optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.01)
average, schedule = ModelEmaV2(model), CosineLRScheduler(optimizer, 10)
for n in range(4):
    x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 4, (4,))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
    schedule.step(n)
