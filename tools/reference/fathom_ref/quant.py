"""Number formats used by the DeepSeek V4 / V4.1 checkpoints and caches.

Everything here is written for readability, not speed.  Values are ordinary
float tensors; the functions only decide which grid points they may take.

Formats
  E4M3  8-bit float, 4 exponent / 3 mantissa bits, finite max 448, no infinity
  E2M1  4-bit float: magnitudes 0 .5 1 1.5 2 3 4 6, bit 3 is the sign
  E8M0  8-bit power of two: byte b means 2**(b-127)
"""
import torch

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_MAGNITUDE = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


def pow2_ceil(x):
    """Smallest power of two >= x, exact (x > 0)."""
    mant, expo = torch.frexp(x)                       # x = mant * 2**expo, mant in [.5, 1)
    expo = torch.where(mant == 0.5, expo - 1, expo)
    return torch.ldexp(torch.ones_like(x), expo)


def e8m0_decode(byte):
    return torch.ldexp(torch.ones(byte.shape, dtype=torch.float64), byte.to(torch.int32) - 127)


def e8m0_encode(power_of_two):
    _, expo = torch.frexp(power_of_two.double())
    return (expo - 1 + 127).clamp(0, 254).to(torch.uint8)


def round_e4m3(x):
    """Nearest E4M3 value, ties to even, saturating at +-448."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).to(x.dtype)


def e2m1_code(x):
    """4-bit code of the nearest E2M1 value: ties go to the even code, saturating at +-6."""
    grid = E2M1_MAGNITUDE.to(x.dtype)
    mid = (grid[1:] + grid[:-1]) / 2                  # .25 .75 1.25 1.75 2.5 3.5 5
    mag = x.abs().clamp(max=E2M1_MAX).contiguous()
    below = torch.bucketize(mag, mid, right=False)    # number of midpoints strictly below mag
    at_or_below = torch.bucketize(mag, mid, right=True)
    code = torch.where(below % 2 == 0, below, at_or_below)   # on a tie pick the even neighbour
    return code.to(torch.uint8) | (torch.signbit(x).to(torch.uint8) << 3)


def e2m1_value(code, dtype=torch.float64):
    mag = E2M1_MAGNITUDE.to(dtype)[(code & 7).long()]
    return torch.where((code & 8) != 0, -mag, mag)


def _blocks(x, size):
    return x.unflatten(-1, (x.shape[-1] // size, size))


def fake_fp8(x, block):
    """E4M3 with one power-of-two scale per `block` consecutive values of the last axis."""
    b = _blocks(x, block)
    scale = pow2_ceil(b.abs().amax(-1, keepdim=True).clamp_min(1e-4).float() / E4M3_MAX).to(x.dtype)
    return (round_e4m3(b / scale) * scale).flatten(-2)


def fake_fp4_e8m0(x, block=32):
    """E2M1 with one power-of-two scale per `block` values (indexer queries and keys)."""
    b = _blocks(x, block)
    scale = pow2_ceil(b.abs().amax(-1, keepdim=True).clamp_min(6.0 * 2.0 ** -126).float() / E2M1_MAX).to(x.dtype)
    return (e2m1_value(e2m1_code(b / scale), x.dtype) * scale).flatten(-2)


def fake_fp4_e4m3(x, block=16):
    """E2M1 with one E4M3 scale per `block` values (V4.1 compressed KV).

    The division is an fp32 product with the fp32 reciprocal of the scale; this decides ties.
    """
    b = _blocks(x, block).float()
    amax = b.abs().amax(-1, keepdim=True).clamp_min(E2M1_MAX * 2.0 ** -9)
    scale = round_e4m3(amax * torch.tensor(1 / E2M1_MAX))
    return (e2m1_value(e2m1_code(b * (1.0 / scale)), x.dtype) * scale.to(x.dtype)).flatten(-2)


def hadamard(x):
    """Orthonormal Walsh-Hadamard transform of the last axis (length a power of two)."""
    n = x.shape[-1]
    y, h = x, 1
    while h < n:
        y = y.unflatten(-1, (n // (2 * h), 2, h))
        a, b = y[..., 0, :], y[..., 1, :]
        y = torch.stack([a + b, a - b], dim=-2).flatten(-3)
        h *= 2
    return y * n ** -0.5


def _expand(scale, rows, cols, br, bc):
    return scale.repeat_interleave(br, 0)[:rows].repeat_interleave(bc, 1)[:, :cols]


def fp8_weight_encode(w, block):
    """[N, K] -> (E4M3 [N, K], E8M0 bytes [ceil(N/block), ceil(K/block)])."""
    n, k = w.shape
    pad = torch.zeros(-(-n // block) * block, -(-k // block) * block, dtype=torch.float64)
    pad[:n, :k] = w.double()
    tiles = pad.unflatten(0, (-1, block)).unflatten(2, (-1, block))
    scale = pow2_ceil(tiles.abs().amax(dim=(1, 3)).clamp_min(1e-30) / E4M3_MAX)
    q = (w.double() / _expand(scale, n, k, block, block)).float().clamp(-E4M3_MAX, E4M3_MAX)
    return q.to(torch.float8_e4m3fn), e8m0_encode(scale)


def fp8_weight_decode(q, scale_byte, block):
    n, k = q.shape
    return q.double() * _expand(e8m0_decode(scale_byte), n, k, block, block)


def fp4_weight_encode(w):
    """[N, K] -> (int8 [N, K/2], E8M0 bytes [N, K/32]); even k in the low nibble, odd k in the high one."""
    n, k = w.shape
    b = w.double().view(n, k // 32, 32)
    scale = pow2_ceil(b.abs().amax(-1).clamp_min(1e-30) / E2M1_MAX)
    code = e2m1_code(b / scale[..., None]).view(n, k)
    packed = code[:, 0::2] | (code[:, 1::2] << 4)
    return packed.view(torch.int8), e8m0_encode(scale)


def fp4_weight_decode(packed, scale_byte):
    u = packed.view(torch.uint8)
    code = torch.stack([u & 15, u >> 4], dim=-1).flatten(-2)
    value = e2m1_value(code).view(u.shape[0], -1, 32) * e8m0_decode(scale_byte)[..., None]
    return value.flatten(-2)


def fp8_rows_encode(w, block=32):
    """Engram table: E4M3 rows with one E8M0 scale per `block` columns of every row."""
    b = w.double().view(w.shape[0], -1, block)
    scale = pow2_ceil(b.abs().amax(-1).clamp_min(1e-30) / E4M3_MAX)
    q = (b / scale[..., None]).float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return q.flatten(-2), e8m0_encode(scale)


def fp8_rows_decode(q, scale_byte, block=32):
    return (q.double().unflatten(-1, (-1, block)) * e8m0_decode(scale_byte)[..., None]).flatten(-2)
