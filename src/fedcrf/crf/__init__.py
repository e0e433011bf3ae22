"""m-sized work: the conditional random field over the clients of a round."""

from fedcrf.crf.base_weights import base_weights
from fedcrf.crf.client_crf import ClientCRF, Posterior
from fedcrf.crf.exact import exact_marginals
from fedcrf.crf.mean_field import mean_field

__all__ = ["ClientCRF", "Posterior", "base_weights", "exact_marginals", "mean_field"]
