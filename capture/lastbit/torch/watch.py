"""Numbers of a run that should wake the flight recorder."""


class Watch:
    """The flight recorder's triggers on numbers: not finite, gradient norm against its EMA, loss against its average."""

    NORM_RATIO, NORM_STEPS, LOSS_RATIO, LOSS_STEPS, KEEP = 10.0, 10, 2.0, 20, 0.9

    def __init__(self):
        self.norm, self.norms, self.losses = 0.0, 0, []

    def see(self, name, x):
        """Why this number is alarming, or None."""
        if name not in ("loss", "grad_norm"):
            return None
        if x != x or x in (float("inf"), float("-inf")):
            return "%s is %s" % (name, x)
        why = None
        if name == "grad_norm":
            if self.norms >= self.NORM_STEPS and x > self.NORM_RATIO * self.norm:
                why = "grad_norm %g is %.0f times its average" % (x, x / max(self.norm, 1e-300))
            self.norm = x if not self.norms else self.KEEP * self.norm + (1 - self.KEEP) * x
            self.norms += 1
        else:
            mean = sum(self.losses) / len(self.losses) if self.losses else 0.0
            if len(self.losses) >= self.LOSS_STEPS and mean > 0 and x > self.LOSS_RATIO * mean:
                why = "loss %g is %.1f times its average" % (x, x / mean)
            self.losses = self.losses[-self.LOSS_STEPS + 1 :] + [x]
        return why
