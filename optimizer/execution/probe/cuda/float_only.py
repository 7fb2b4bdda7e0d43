"""Operations that CUDA has for float32 and float64, and for no reduced type: on a half tensor they raise.

Taken from the list of operations that PyTorch tests itself by, where ``dtypesIfCUDA`` has float32 and neither float16
nor bfloat16 (``torch.testing._internal.common_methods_invocations.op_db``, as of 2.14), as far as they arrive below
autograd under a name of their own. The rest of them is made of these, or checks its type by itself on every device.
"""

from __future__ import annotations

_DECOMPOSITIONS = frozenset(
    "cholesky_inverse cholesky_solve geqrf ormqr lu_unpack triangular_solve linalg_cholesky_ex linalg_eig "
    "_linalg_eigvals _linalg_eigh linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve "
    "linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_qr _linalg_slogdet _linalg_det "
    "_linalg_solve_ex linalg_solve_triangular _linalg_svd linalg_pinv linalg_polar linalg_matrix_sqrth".split()
)
_OTHERS = frozenset("_cdist_forward _pdist_forward _ctc_loss histc igamma igammac".split())
_SPECIAL = frozenset(
    f"special_{name}"
    for name in "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 erfcx log_ndtr ndtri zeta modified_bessel_i0 "
    "modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 "
    "spherical_bessel_j0 chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l "
    "legendre_polynomial_p".split()
)
_DERIVATIVES = frozenset({"_dirichlet_grad"})
"""What backward passes alone call, from ``ATen/native/cuda/Distributions.cu``: samples of a Beta or Dirichlet."""
FLOAT_ONLY = _DERIVATIVES | _DECOMPOSITIONS | _OTHERS | _SPECIAL
