"""The forms of a scaling law and their derivatives, for batches of parameter vectors.

A form is a sum of at most three positive terms, a N^-alpha + b D^-beta + E (arXiv 2606.15378, section on scaling
laws; E as in Hoffmann et al. 2022). Everything is done on logarithms: each term is exp(c - e·(u - centre)) with c the
logarithm of its size at the centre of the data, e its exponent and u log N or log D. Centring takes the strong
correlation of a and alpha out of the problem; it changes no fitted value.

Letters in array names: M problems, P points, T terms, K parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gridlaw.platform.errors import BadInput

Array = NDArray[np.float64]

FORMS: dict[str, str] = {
    "nd": "a N^-alpha + b D^-beta",
    "nde": "a N^-alpha + b D^-beta + E",
    "n": "a N^-alpha",
    "d": "b D^-beta",
    "ne": "a N^-alpha + E",
    "de": "b D^-beta + E",
}
_COEFFICIENT = {"n": "a", "d": "b", "e": "E"}
_EXPONENT = {"n": "alpha", "d": "beta"}


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form: which terms it has and where each sits in a parameter vector (c and e of N, c and e of D, c of E)."""

    name: str

    @property
    def letters(self) -> str:
        """The terms in order, a subset of ``n``, ``d``, ``e``."""
        return self.name

    @property
    def formula(self) -> str:
        return FORMS[self.name]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names in the order of the parameter vector: coefficient, then exponent, term by term."""
        names: list[str] = []
        for letter in self.letters:
            names.append(_COEFFICIENT[letter])
            if letter in _EXPONENT:
                names.append(_EXPONENT[letter])
        return tuple(names)

    @property
    def exponents(self) -> tuple[str, ...]:
        return tuple(_EXPONENT[letter] for letter in self.letters if letter in _EXPONENT)

    @property
    def num_parameters(self) -> int:
        return len(self.parameters)

    def index(self, name: str) -> int:
        return self.parameters.index(name)

    def positions(self) -> list[tuple[int, int | None]]:
        """Of each term, the positions of its c and of its e (None for the constant)."""
        places: list[tuple[int, int | None]] = []
        position = 0
        for letter in self.letters:
            has_exponent = letter in _EXPONENT
            places.append((position, position + 1 if has_exponent else None))
            position += 2 if has_exponent else 1
        return places


def get_form(name: str) -> Form:
    """The form of that name; BadInput lists the known ones."""
    if name not in FORMS:
        known = ", ".join(f"{key} ({text})" for key, text in FORMS.items())
        raise BadInput("form", seen=name, allowed=known)
    return Form(name=name)


@dataclass(frozen=True, kw_only=True)
class Design:
    """Where the points lie, in centred logarithms.

    u_TP: centred log N, log D or 0 for each term and point; centre_T: what was taken off.
    """

    form: Form
    u_TP: Array
    centre_T: Array

    @staticmethod
    def of(form: Form, log_n_P: Array, log_d_P: Array, *, uncentred: frozenset[str] = frozenset()) -> Design:
        """``uncentred`` names coefficients (a, b) kept at centre 0, so that a bound on them stays a box."""
        rows, centres = [], []
        for letter in form.letters:
            source = {"n": log_n_P, "d": log_d_P, "e": np.zeros_like(log_n_P)}[letter]
            centre = 0.0 if letter == "e" or _COEFFICIENT[letter] in uncentred else float(np.mean(source))
            rows.append(source - centre)
            centres.append(centre)
        return Design(form=form, u_TP=np.array(rows), centre_T=np.array(centres))

    def to_natural(self, theta_MK: Array) -> Array:
        """Centred parameters → (a, alpha, b, beta, E), same order and shape."""
        natural = np.array(theta_MK, dtype=float)
        for (c, e), centre in zip(self.form.positions(), self.centre_T, strict=True):
            shift = 0.0 if e is None else theta_MK[..., e] * centre
            with np.errstate(over="ignore"):
                natural[..., c] = np.exp(theta_MK[..., c] + shift)
        return natural

    def from_natural(self, natural_MK: Array) -> Array:
        """(a, alpha, b, beta, E) → centred parameters."""
        theta = np.array(natural_MK, dtype=float)
        for (c, e), centre in zip(self.form.positions(), self.centre_T, strict=True):
            shift = 0.0 if e is None else theta[..., e] * centre
            with np.errstate(divide="ignore"):
                theta[..., c] = np.log(natural_MK[..., c]) - shift
        return theta

    def log_terms(self, theta_MK: Array) -> Array:
        """Logarithm of each term at each point, [M, T, P]."""
        columns = []
        for t, (c, e) in enumerate(self.form.positions()):
            column = np.repeat(theta_MK[:, c, None], self.u_TP.shape[1], axis=1)
            if e is not None:
                column -= theta_MK[:, e, None] * self.u_TP[t]
            columns.append(column)
        return np.stack(columns, axis=1)

    def log_value(self, theta_MK: Array) -> tuple[Array, Array]:
        """Log of the law [M, P] and each term's share of it [M, T, P]."""
        terms_MTP = self.log_terms(theta_MK)
        top_MP = terms_MTP.max(axis=1)
        terms_MTP -= top_MP[:, None]
        np.exp(terms_MTP, out=terms_MTP)
        total_MP = terms_MTP.sum(axis=1)
        terms_MTP /= total_MP[:, None]
        return top_MP + np.log(total_MP), terms_MTP

    def jacobian(self, share_MTP: Array) -> Array:
        """d log(law) / d parameter, [M, K, P]."""
        num, _, points = share_MTP.shape
        jac_MKP = np.empty((num, self.form.num_parameters, points))
        for t, (c, e) in enumerate(self.form.positions()):
            jac_MKP[:, c] = share_MTP[:, t]
            if e is not None:
                jac_MKP[:, e] = -share_MTP[:, t] * self.u_TP[t]
        return jac_MKP

    def curvature(self, share_MTP: Array, weight_MP: Array) -> Array:
        """Sum over points of weight · (Hessian of log(law) + J J^T), [M, K, K]: block-diagonal by term."""
        size = self.form.num_parameters
        out_MKK = np.zeros((len(share_MTP), size, size))
        for t, (c, e) in enumerate(self.form.positions()):
            mass_MP = weight_MP * share_MTP[:, t]
            out_MKK[:, c, c] = mass_MP.sum(axis=1)
            if e is not None:
                u_P = self.u_TP[t]
                out_MKK[:, c, e] = out_MKK[:, e, c] = -(mass_MP @ u_P)
                out_MKK[:, e, e] = mass_MP @ (u_P * u_P)
        return out_MKK
