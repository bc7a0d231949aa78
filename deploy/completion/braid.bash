# bash completion of braid, made by `braid completion bash`
_braid() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
  local flags='' words='' files=''
  COMPREPLY=()
  if [ "$cur" = = ]; then # bash splits --flag=value
    cur=''
  elif [ "$prev" = = ]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  if [ "$COMP_CWORD" = 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "run launch predict datagen ps table ckpt bench completion doctor version help --help --version" -- "$cur")
    return
  fi
  case ${COMP_WORDS[1]} in
  run)
    flags="--help --workers --resume --dry-run --format --servers --run-dir --threads --port --store --ready-timeout --max-restarts --verbose --ps-bin --worker-bin"
    case $prev in
    --workers) return ;;
    --resume) files=1 ;;
    --format | -o) words="table json" ;;
    --servers) return ;;
    --run-dir) files=1 ;;
    --threads) return ;;
    --port) return ;;
    --store) files=1 ;;
    --ready-timeout) return ;;
    --max-restarts) return ;;
    --ps-bin) files=1 ;;
    --worker-bin) files=1 ;;
    *)
      files=1
      ;;
    esac
    ;;
  launch)
    flags="--help --nnodes --nproc-per-node --node-rank --rdzv-endpoint --rdzv-id --rdzv-backend --rdzv-conf --standalone --master-addr --master-port --local-addr --max-restarts --join-timeout --last-call --monitor-interval --role --log-dir --redirects --tee --local-ranks-filter --module --no-python --coordinator --allow-insecure --tls-client-auth --tokens-file --tls-ca --tls-cert --tls-key --tls-server-name --token-file --etcd-ca --etcd-cert --etcd-key --etcd-user --etcd-password-file"
    case $prev in
    --nnodes) files=1 ;;
    --nproc-per-node) files=1 ;;
    --node-rank) return ;;
    --rdzv-endpoint) files=1 ;;
    --rdzv-id) files=1 ;;
    --rdzv-backend) words="auto static braid c10d etcd etcd-v2" ;;
    --rdzv-conf) files=1 ;;
    --master-addr) files=1 ;;
    --master-port) return ;;
    --local-addr) files=1 ;;
    --max-restarts) return ;;
    --join-timeout) return ;;
    --last-call) return ;;
    --monitor-interval) return ;;
    --role) files=1 ;;
    --log-dir) files=1 ;;
    --redirects) files=1 ;;
    --tee) files=1 ;;
    --local-ranks-filter) files=1 ;;
    --module) files=1 ;;
    --coordinator) files=1 ;;
    --tokens-file) files=1 ;;
    --tls-ca) files=1 ;;
    --tls-cert) files=1 ;;
    --tls-key) files=1 ;;
    --tls-server-name) files=1 ;;
    --token-file) files=1 ;;
    --etcd-ca) files=1 ;;
    --etcd-cert) files=1 ;;
    --etcd-key) files=1 ;;
    --etcd-user) files=1 ;;
    --etcd-password-file) files=1 ;;
    *)
      files=1
      ;;
    esac
    ;;
  predict)
    flags="--help --input --output --resume --servers --run-dir --threads --port --store --ready-timeout --max-restarts --verbose --ps-bin --worker-bin"
    case $prev in
    --input) files=1 ;;
    --output) files=1 ;;
    --resume) files=1 ;;
    --servers) return ;;
    --run-dir) files=1 ;;
    --threads) return ;;
    --port) return ;;
    --store) files=1 ;;
    --ready-timeout) return ;;
    --max-restarts) return ;;
    --ps-bin) files=1 ;;
    --worker-bin) files=1 ;;
    *)
      files=1
      ;;
    esac
    ;;
  datagen)
    flags="--help --rows --test-rows --out --test-out --seed --cardinality --zipf --fields --rank --linear --auc --ctr --threads --format"
    case $prev in
    --rows) return ;;
    --test-rows) return ;;
    --out) files=1 ;;
    --test-out) files=1 ;;
    --seed) return ;;
    --cardinality) return ;;
    --zipf) return ;;
    --fields) return ;;
    --rank) return ;;
    --linear) return ;;
    --auc) return ;;
    --ctr) return ;;
    --threads) return ;;
    --format | -o) words="table json" ;;
    *)
      ;;
    esac
    ;;
  ps)
    flags="--help --coordinator --run-dir --timeout --format --tls-ca --tls-cert --tls-key --tls-server-name --token-file --etcd-ca --etcd-cert --etcd-key --etcd-user --etcd-password-file --server --yes"
    case $prev in
    --coordinator) files=1 ;;
    --run-dir) files=1 ;;
    --timeout) return ;;
    --format | -o) words="table json" ;;
    --tls-ca) files=1 ;;
    --tls-cert) files=1 ;;
    --tls-key) files=1 ;;
    --tls-server-name) files=1 ;;
    --token-file) files=1 ;;
    --etcd-ca) files=1 ;;
    --etcd-cert) files=1 ;;
    --etcd-key) files=1 ;;
    --etcd-user) files=1 ;;
    --etcd-password-file) files=1 ;;
    --server) return ;;
    *)
      [ "$COMP_CWORD" = 2 ] && words="status drain undrain health"
      ;;
    esac
    ;;
  table)
    flags="--help --coordinator --run-dir --data-dir --timeout --format --output --input --with-state --top --ps-bin --tls-ca --tls-cert --tls-key --tls-server-name --token-file --etcd-ca --etcd-cert --etcd-key --etcd-user --etcd-password-file"
    case $prev in
    --coordinator) files=1 ;;
    --run-dir) files=1 ;;
    --data-dir) files=1 ;;
    --timeout) return ;;
    --format | -o) words="table json" ;;
    --output) files=1 ;;
    --input) files=1 ;;
    --top) return ;;
    --ps-bin) files=1 ;;
    --tls-ca) files=1 ;;
    --tls-cert) files=1 ;;
    --tls-key) files=1 ;;
    --tls-server-name) files=1 ;;
    --token-file) files=1 ;;
    --etcd-ca) files=1 ;;
    --etcd-cert) files=1 ;;
    --etcd-key) files=1 ;;
    --etcd-user) files=1 ;;
    --etcd-password-file) files=1 ;;
    *)
      [ "$COMP_CWORD" = 2 ] && words="list describe get set hot-keys hot export import"
      files=1
      ;;
    esac
    ;;
  ckpt)
    flags="--help --run-dir --data-dir --format --keep --yes --ps-bin"
    case $prev in
    --run-dir) files=1 ;;
    --data-dir) files=1 ;;
    --format | -o) words="table json" ;;
    --keep) return ;;
    --ps-bin) files=1 ;;
    *)
      [ "$COMP_CWORD" = 2 ] && words="list verify diff prune"
      files=1
      ;;
    esac
    ;;
  bench)
    flags="--help --ranks --backend --bytes --dtype --buffers --hosts --connections --interface --netns --reps --rewrite --json --op --keys --dim --rows --dist --zipf --durability --optimizer --consistency --servers --clients --depth --seconds --wire-rows --wire-grads --codec --spin-us --coordinator --data-dir --ps-set"
    case $prev in
    --ranks) return ;;
    --backend) words="shm tcp hier" ;;
    --bytes) files=1 ;;
    --dtype) words="f32 f16 bf16 f64 i32 i64 u8 i8" ;;
    --buffers) words="ring any" ;;
    --hosts) return ;;
    --connections) return ;;
    --interface) files=1 ;;
    --netns) files=1 ;;
    --reps) return ;;
    --op) words="lookup push mixed" ;;
    --keys) files=1 ;;
    --dim) return ;;
    --rows) return ;;
    --dist) words="uniform zipf" ;;
    --zipf) return ;;
    --durability) words="checkpoint journal sync" ;;
    --optimizer) files=1 ;;
    --consistency) words="async sync" ;;
    --servers) return ;;
    --clients) return ;;
    --depth) return ;;
    --seconds) return ;;
    --wire-rows) words="f32 f16 bf16 i8" ;;
    --wire-grads) words="f32 f16 bf16 i8" ;;
    --codec) words="none lz4 zstd" ;;
    --spin-us) return ;;
    --coordinator) files=1 ;;
    --data-dir) files=1 ;;
    --ps-set) files=1 ;;
    *)
      [ "$COMP_CWORD" = 2 ] && words="allreduce ps"
      ;;
    esac
    ;;
  completion)
    flags="--help"
    case $prev in
    *)
      [ "$COMP_CWORD" = 2 ] && words="bash zsh fish"
      ;;
    esac
    ;;
  doctor)
    flags="--help --format"
    case $prev in
    --format | -o) words="table json" ;;
    *)
      ;;
    esac
    ;;
  version)
    flags="--help --format"
    case $prev in
    --format | -o) words="table json" ;;
    *)
      ;;
    esac
    ;;
  help)
    flags="--help"
    case $prev in
    *)
      words="run launch predict datagen ps table ckpt bench completion doctor version help"
      ;;
    esac
    ;;
  esac
  case $cur in
  -*) mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur") ;;
  *)
    if [ -n "$words" ]; then
      mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    elif [ -n "$files" ]; then
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
    ;;
  esac
}
complete -o filenames -F _braid braid
