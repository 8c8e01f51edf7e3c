//! Numbers and names of vhost-user requests.

macro_rules! requests {
    ($($name:ident = $number:literal),* $(,)?) => {
        $(
            #[allow(missing_docs, reason = "the specification describes them")]
            pub const $name: u32 = $number;
        )*
        /// The specification's name of a request number, without its prefix.
        pub fn name(number: u32) -> &'static str {
            match number {
                $($number => stringify!($name),)*
                _ => "unknown request",
            }
        }
    };
}
requests! {
    GET_FEATURES = 1, SET_FEATURES = 2, SET_OWNER = 3, RESET_OWNER = 4, SET_MEM_TABLE = 5,
    SET_LOG_BASE = 6, SET_LOG_FD = 7, SET_VRING_NUM = 8, SET_VRING_ADDR = 9, SET_VRING_BASE = 10,
    GET_VRING_BASE = 11, SET_VRING_KICK = 12, SET_VRING_CALL = 13, SET_VRING_ERR = 14,
    GET_PROTOCOL_FEATURES = 15, SET_PROTOCOL_FEATURES = 16, GET_QUEUE_NUM = 17,
        SET_VRING_ENABLE = 18,
    SEND_RARP = 19, NET_SET_MTU = 20, SET_BACKEND_REQ_FD = 21, IOTLB_MSG = 22,
        SET_VRING_ENDIAN = 23,
    GET_CONFIG = 24, SET_CONFIG = 25, CREATE_CRYPTO_SESSION = 26, CLOSE_CRYPTO_SESSION = 27,
    POSTCOPY_ADVISE = 28, POSTCOPY_LISTEN = 29, POSTCOPY_END = 30, GET_INFLIGHT_FD = 31,
    SET_INFLIGHT_FD = 32, GPU_SET_SOCKET = 33, RESET_DEVICE = 34, VRING_KICK = 35,
    GET_MAX_MEM_SLOTS = 36, ADD_MEM_REG = 37, REM_MEM_REG = 38, SET_STATUS = 39, GET_STATUS = 40,
}

/// True for requests that have a reply of their own: a frontend waits for it, so that leaving it
/// out would hang the VMM.
pub fn has_reply(number: u32) -> bool {
    matches!(
        number,
        GET_FEATURES
            | SET_LOG_BASE
            | GET_VRING_BASE
            | GET_PROTOCOL_FEATURES
            | GET_QUEUE_NUM
            | IOTLB_MSG
            | GET_CONFIG
            | CREATE_CRYPTO_SESSION
            | POSTCOPY_ADVISE
            | POSTCOPY_END
            | GET_INFLIGHT_FD
            | GET_MAX_MEM_SLOTS
            | GET_STATUS
    )
}
